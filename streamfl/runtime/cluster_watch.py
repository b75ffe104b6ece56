"""Asks the cluster every few seconds: does it answer, do the worker's topics still exist, has the group too
many workers, how large is the lag?
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from streamfl.contract.channels import Channels
from streamfl.runtime.bus import HOW_TO_CREATE, Bus, BusUnavailable
from streamfl.runtime.health import Health
from streamfl.runtime.lag import Lag
from streamfl.runtime.log import logger
from streamfl.runtime.open_transactions import OpenTransactions

__all__ = ["ClusterWatch", "topics_of"]

log = logger(__name__)

EVERY_SECONDS = 5.0


def topics_of(channels: Channels, dead_letters: str) -> list[str]:
    """Every topic that a role reads or writes, its first input first."""
    sources = [source.topic for source in channels.sources.values()]
    return list(
        dict.fromkeys([*sources, *channels.outputs.values(), *channels.changelogs.values(), dead_letters])
    )


class ClusterWatch:
    """Notes in ``health`` what the cluster reports of a worker's topics and group, on a thread of its own
    between start and close.

    It is needed because a consumer gets no record and no error, for ever, if its topic is deleted, or if it
    has no partitions and all brokers are dead.

    bus: the cluster.
    topics: all topics that the worker uses. The first is an input.
    group: the worker's consumer group.
    health: where trouble is noted.
    on_unusable: called once, with a text for the operator, when a topic is missing for too long, was deleted
    and made again, or has more partitions than before.
    patience_seconds: how long a topic may be missing. A broker that has just started may not know all topics
    yet.
    clock: seconds that never run backwards.
    lag: is updated at each look; None: no lag is measured.
    transactions: looks for open transactions that hold back the worker's inputs; None: they are not looked
    for.
    inputs: those of the topics whose further partitions would be missed; None: the first of them.
    partitions: how many are read of each input; None: as many as the first of ``inputs`` has.
    grown: makes the operator's text when one of these gets more partitions, from its name and both numbers.
    changelogs: those of the topics whose records only compaction may delete.
    """

    def __init__(
        self,
        bus: Bus,
        topics: Iterable[str],
        group: str,
        health: Health,
        on_unusable: Callable[[str], None],
        patience_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        lag: Lag | None = None,
        transactions: OpenTransactions | None = None,
        inputs: Sequence[str] | None = None,
        grown: Callable[
            [str, int, int], str
        ] = "topic {!r} had {} partitions when this worker started, and has {}".format,
        changelogs: Collection[str] = (),
        partitions: int | None = None,
    ) -> None:
        self._bus = bus
        self._topics = list(topics)
        self._group = group
        self._health = health
        self._on_unusable = on_unusable
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._lag = lag
        self._transactions = transactions
        self._grown = grown
        self._changelogs = changelogs
        self._inputs = self._topics[:1] if inputs is None else inputs
        self._read = partitions
        self._partitions: dict[str, int] = {}
        self._identities: dict[str, str] = {}
        self._missing_since: float | None = None
        self._failed = ""
        # Whether the last look came past its first question.
        self._answered = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="cluster watch", daemon=True)

    def start(self) -> None:
        """Look every few seconds until closed."""
        # The cluster answered when the bus was made.
        self._health.heard()
        self._thread.start()

    def close(self) -> None:
        """Stop looking, without waiting for a question that the cluster does not answer."""
        self._closed.set()
        self._thread.join(1.0)

    def look(self) -> bool:
        """Ask once. False when ``on_unusable`` was called. BusUnavailable if the cluster does not answer."""
        self._answered = False
        states = self._bus.describe(self._topics)
        self._answered = True
        self._health.heard()
        missing = [name for name in self._topics if name not in states]
        known = {name: state.identity for name, state in states.items() if state.identity}
        remade = [
            name
            for name, identity in known.items()
            if self._identities.setdefault(name, identity) != identity
        ]
        if remade:
            return self._lose(
                f"{_named(remade)} was deleted and created again while this worker ran, which knows the old "
                "topic: start the worker again, it continues or says what to do"
            )
        if missing:
            text = f"{_named(missing)} does not exist any more: create it again, {HOW_TO_CREATE}"
            self._health.note("topics", text)
            now = self._clock()
            self._missing_since = now if self._missing_since is None else self._missing_since
            return self._lose(text) if now - self._missing_since >= self._patience_seconds else True
        self._missing_since = None
        # A right that was taken away may be given back; no restart is needed then.
        wrong = [
            f"topic {name!r}: {state.error}"
            for name, state in states.items()
            if state.error and not state.partitions
        ]
        # What is deleted is missed only at the next restoring.
        wrong += [
            f"topic {name!r} has cleanup.policy={kept}, so that the cluster deletes state: set "
            "cleanup.policy=compact on it"
            for name in self._changelogs
            if "delete" in (kept := states[name].options.get("cleanup.policy", ""))
        ]
        self._health.note("topics", "; ".join(wrong) or None)
        for name in self._inputs:
            now = states[name].partitions
            before = self._partitions[name] = self._partitions.get(name) or now
            if now > before:
                return self._lose(self._grown(name, before, now))
        partitions = states[self._inputs[0]].partitions if self._read is None else self._read
        members = self._bus.members(self._group) if self._health.without_partitions else 0
        told = (
            f"its group has {members} workers for {partitions} partitions, and other workers have all of them"
        )
        # librdkafka's group shares out the first input. A member may have got further partitions of it alone.
        further = members > 1 and states[self._topics[0]].partitions > partitions
        self._health.standby = told if members > partitions or further else None
        if self._lag is not None:
            self._lag.look()
        if self._transactions is not None:
            self._health.note("transactions", self._transactions.look())
        self._health.heard()
        return True

    def ask(self) -> bool:
        """The same without raising errors: an error must not end the watch, or a worker whose topics are gone
        would stay ready."""
        try:
            going_on = self.look()
            self._failed = ""
            return going_on
        except BusUnavailable as failure:
            self._health.unheard(str(failure))
            # A cluster that answers nothing turns the worker red, and the loop logs it. Here it answers in
            # part, for instance while a partition or the group has no leader, and figures stand still. Each
            # text may differ: the first of them is logged.
            if self._answered and not self._failed:
                self._warn(str(failure))
        except Exception as error:
            self._health.unheard(str(error))
            if str(error) != self._failed:
                self._warn(str(error))
        return True

    def _warn(self, cause: str) -> None:
        if not self._closed.is_set():
            self._failed = cause
            log.warning("the cluster does not describe this worker's topics and group", cause=cause)

    def _lose(self, text: str) -> bool:
        self._health.note("topics", text)
        self._on_unusable(text)
        return False

    def _watch(self) -> None:
        while not self._closed.is_set() and self.ask():
            self._closed.wait(EVERY_SECONDS)


def _named(topics: list[str]) -> str:
    return ", ".join(f"topic {name!r}" for name in topics)
