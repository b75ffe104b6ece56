"""The library's log: where it goes, and what of it the connector listens to."""

from __future__ import annotations

import logging
import re

from streamfl_connectors.outage_log import ONE_LINE

__all__ = ["LOG", "EndTxnAnswers"]

LOG = logging.getLogger(__name__)


class _OneOptionForAll(logging.Filter):
    """Hides that a producer has no use for a consumer's option: every client gets all of them."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "CONFWARN" not in record.getMessage()


LOG.addFilter(_OneOptionForAll())
LOG.addFilter(ONE_LINE)


class EndTxnAnswers:
    """A producer's logger. It hands everything on, and hears what became of each EndTxn that was sent.

    EndTxn ends a transaction. It names the producer and the epoch, and not the transaction (KAFKA-17754). The library sends it
    again inside its call when the connection breaks or time runs out, and reports a success when the second one is answered. The
    first one may still be under way then. When it arrives, it ends whatever transaction that epoch has begun by then.

    No error, callback or figure tells of it in time. The library's log for ``debug = eos`` does: it has one line for every answer
    and for every time that no answer came, before the call returns.

    fatal: why the producer is dead, in words; "" as long as nothing was heard of that. The exception that says so may get lost on
    its way: it is raised while a call still goes on to callbacks, of which this log is one.
    """

    CONTEXT = "eos"

    def __init__(self) -> None:
        self._heard: list[str] = []
        self.fatal = ""

    def log(self, level: int, text: str, *arguments: str) -> None:
        """What the library calls, within calls of the producer's own."""
        if arguments and arguments[0] == "FATAL":
            self.fatal = arguments[-1]
        if arguments and arguments[0] == "ENDTXN":
            found = re.search(r"EndTxn returned (\w+)", arguments[-1])
            self._heard.append(found[1] if found else arguments[-1])
        LOG.log(level, text, *arguments)

    def only_success(self) -> bool:
        """Whether exactly one EndTxn was sent since the last call, and answered well. Poll the producer before.

        Anything else counts as doubt, so that a library with another log makes commits slow and not wrong.
        """
        heard, self._heard = self._heard, []
        return heard == ["NO_ERROR"]
