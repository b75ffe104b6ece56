"""The library's log: where it goes, and which lines the connector reads."""

from __future__ import annotations

import logging
import re

from streamfl_connectors.outage_log import ONE_LINE

__all__ = ["LOG", "EndTxnAnswers"]

LOG = logging.getLogger(__name__)


class _NoFailure(logging.Filter):
    """Hides warnings that a producer does not use a consumer's option: every client gets all options. Unless
    ``log.level`` is debug it hides, too, that a producer's number was asked for while its coordinator was
    still being made: the library asks again at once."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if "CONFWARN" in text:
            return False
        wanted = logging.getLogger("streamfl").isEnabledFor(logging.DEBUG)
        return wanted or not ("GETPID" in text and "oordinator" in text and text.endswith("retrying"))


class _NoGuess(logging.Filter):
    """Takes out the guess that a broker is too old, which the library makes of any that does not answer: such
    old ones carry no federation."""

    GUESS = ": probably due to broker version < 0.10 (see api.version.request configuration)"

    def filter(self, record: logging.LogRecord) -> bool:
        if self.GUESS in (text := record.getMessage()):
            record.msg, record.args = "%s", (text.replace(self.GUESS, ""),)
        return True


LOG.addFilter(_NoFailure())
LOG.addFilter(_NoGuess())
LOG.addFilter(ONE_LINE)


class EndTxnAnswers:
    """A producer's logger. It passes every line on, and notes the result of each EndTxn that was sent.

    EndTxn ends a transaction. It names the producer and the epoch, but not the transaction (KAFKA-17754). The
    library sends it again inside its call when the connection breaks or time runs out, and reports a success
    when the second request is answered. The first request may still be under way then. When it arrives, it
    ends whatever transaction that epoch has begun by then.

    No error, callback or statistic reports this in time. The library's log for ``debug = eos`` does: it has
    one line for every answer and for every time that no answer came, before the call returns.

    fatal: the text why the producer is unusable; "" if no such line came. The exception that says so may get
    lost: it is raised while a call still goes on to callbacks, of which this log is one.
    """

    CONTEXT = "eos"

    def __init__(self) -> None:
        self._heard: list[str] = []
        self.fatal = ""

    def log(self, level: int, text: str, *arguments: str) -> None:
        """The library calls this within the producer's own calls."""
        if arguments and arguments[0] == "FATAL":
            self.fatal = arguments[-1]
        if arguments and arguments[0] == "ENDTXN":
            found = re.search(r"EndTxn returned (\w+)", arguments[-1])
            self._heard.append(found[1] if found else arguments[-1])
        # Nothing is critical: a producer that fails for good is replaced, and one that was replaced may fail
        # minutes later. The worker says so if it cannot go on.
        LOG.log(min(level, logging.WARNING), text, *arguments)

    def only_success(self) -> bool:
        """Whether exactly one EndTxn was sent since the last call, and answered with success. Poll the
        producer before.

        Anything else counts as doubt, so that a library with another log makes commits slow, but not wrong.
        """
        heard, self._heard = self._heard, []
        return heard == ["NO_ERROR"]
