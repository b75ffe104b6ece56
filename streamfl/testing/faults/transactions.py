"""Transactions as a Kafka cluster has them, with the flaw of its protocol, and what a connector does about that flaw.

A request to end a transaction (EndTxn) names a producer and its epoch, but not which transaction of that epoch is meant. Such a
request may be held back on its way, while the client sends it again or goes on without an answer. Then it ends a LATER transaction
in its midst (KAFKA-17754). The remedy is a new epoch after every request without an answer: the cluster refuses late requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from streamfl.runtime.bus import BusUnavailable, Step

__all__ = ["Coordinator", "EpochRefused", "Network", "Producer"]


class EpochRefused(Exception):
    """The request is of an epoch that is over, or contradicts how the last transaction ended."""


@dataclass
class _Transactions:
    """The transactions of one producer.

    show: makes what was written visible.
    epoch: the present one.
    written: by the open transaction.
    committed: whether the last transaction was committed; None while one is open, or if there was none.
    """

    show: Callable[[Step], None]
    epoch: int = 0
    written: list[Step] = field(default_factory=list)
    committed: bool | None = None


class Coordinator:
    """Decides about transactions by producer and epoch alone, as Kafka does for clients that do not speak KIP-890."""

    def __init__(self) -> None:
        self._producers: dict[str, _Transactions] = {}

    def begin_epoch(self, producer: str, show: Callable[[Step], None]) -> int:
        """Abort what is open and refuse all that comes of earlier epochs. Returns the new epoch."""
        own = self._producers[producer] = _Transactions(show, 1 + self._epoch_of(producer))
        return own.epoch

    def write(self, producer: str, epoch: int, part: Step) -> None:
        """EpochRefused if the epoch is over. The first part after an end begins a transaction."""
        own = self._of(producer, epoch)
        own.written.append(part)
        own.committed = None

    def end(self, producer: str, epoch: int, commit: bool) -> None:
        """End whichever transaction is open.

        EpochRefused if the epoch is over, or if no transaction is open and the last one ended differently.
        """
        own = self._of(producer, epoch)
        if not own.written and own.committed is not None and own.committed != commit:
            raise EpochRefused("the transaction has ended otherwise")
        written, own.written, own.committed = own.written, [], commit
        if commit and written:
            own.show(
                Step(
                    positions={place: end for part in written for place, end in part.positions.items()},
                    outputs=[record for part in written for record in part.outputs],
                    changelog=[record for part in written for record in part.changelog],
                )
            )

    def _epoch_of(self, producer: str) -> int:
        own = self._producers.get(producer)
        return 0 if own is None else own.epoch

    def _of(self, producer: str, epoch: int) -> _Transactions:
        own = self._producers[producer]
        if own.epoch != epoch:
            raise EpochRefused(f"epoch {epoch} is over, it is {own.epoch} now")
        return own


@dataclass
class _Held:
    """A request that is held back on its way.

    parts: it arrives when the producer has written so many more.
    """

    epoch: int
    commit: bool
    parts: int


class Network:
    """What lies between producers and the coordinator. It may hold back a request to end a transaction and break the connection.

    coordinator: receives the requests.
    held_back: whether the next request is held back.
    arrived: is told in words what came of a late request.
    draws: for how long a request is held back.
    """

    def __init__(
        self, coordinator: Coordinator, held_back: Callable[[], bool], arrived: Callable[[str], None], draws: np.random.Generator
    ) -> None:
        self.coordinator = coordinator
        self._held_back = held_back
        self._arrived = arrived
        self._draws = draws
        self._on_their_way: dict[str, list[_Held]] = {}

    def write(self, producer: str, epoch: int, part: Step) -> None:
        self.coordinator.write(producer, epoch, part)
        held = self._on_their_way.get(producer, [])
        for request in held:
            request.parts -= 1
        for request in [request for request in held if request.parts == 0]:
            held.remove(request)
            self._arrives_late(producer, request)

    def end(self, producer: str, epoch: int, commit: bool) -> bool:
        """Send a request to end the transaction. Returns whether it was answered."""
        if not self._held_back():
            self.coordinator.end(producer, epoch, commit)
            return True
        parts = int(self._draws.integers(1, 4))
        self._on_their_way.setdefault(producer, []).append(_Held(epoch, commit, parts))
        return False

    def _arrives_late(self, producer: str, request: _Held) -> None:
        what = f"EndTxn ({'commit' if request.commit else 'abort'}) of epoch {request.epoch} arrives late"
        try:
            self.coordinator.end(producer, request.epoch, request.commit)
        except EpochRefused as refusal:
            self._arrived(f"{what} and is refused: {refusal}")
        else:
            self._arrived(f"{what} and is obeyed")


class Producer:
    """A connector's transactional producer.

    A request to end a transaction, by commit or abort, may go unanswered. Then both connectors take a new epoch before anything
    else, and never send the request again under the old one.

    network: where requests are sent.
    name: of the producer.
    show: makes visible what a transaction wrote.
    """

    def __init__(self, network: Network, name: str, show: Callable[[Step], None]) -> None:
        self._network = network
        self._name = name
        self._show = show
        self._begin_epoch()

    def write(self, parts: Sequence[Step]) -> None:
        """BusUnavailable if the cluster has ended this producer's epoch."""
        try:
            for part in parts:
                self._network.write(self._name, self._epoch, part)
        except EpochRefused as refusal:
            self._begin_epoch()
            raise BusUnavailable(str(refusal)) from None

    def commit(self) -> None:
        """Make visible what was written. BusUnavailable if that was not answered."""
        if not self._end(commit=True):
            raise BusUnavailable("the commit was not answered")

    def abort(self) -> None:
        """Give up what was written. Without an answer, the new epoch gives it up."""
        self._end(commit=False)

    def _end(self, commit: bool) -> bool:
        try:
            answered = self._network.end(self._name, self._epoch, commit)
        except EpochRefused:
            self._begin_epoch()
            return False
        return answered or self._after_no_answer(commit)

    def _after_no_answer(self, commit: bool) -> bool:
        """Take a new epoch. Returns whether the transaction counts as ended in the way that was asked for."""
        self._begin_epoch()
        return False

    def _begin_epoch(self) -> None:
        self._epoch = self._network.coordinator.begin_epoch(self._name, self._show)
