"""Kafka's transactions, a flaw of their protocol, and a connector's remedy for that flaw.

A request to end a transaction (EndTxn) names a producer and its epoch, but not which transaction of that
epoch is meant. Such a request may be delayed on its way while the client sends it again or goes on without an
answer. Then it ends a LATER transaction in the middle (KAFKA-17754). The remedy is a new epoch after every
request without an answer: the cluster refuses late requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from streamfl.runtime.bus import BusUnavailable, Step

__all__ = ["Coordinator", "EpochRefused", "Network", "Producer"]


class EpochRefused(Exception):
    """The request belongs to an older epoch, or contradicts how the last transaction ended."""


@dataclass
class _Transactions:
    """The transactions of one producer.

    show: makes writes visible.
    epoch: the current epoch.
    written: the writes of the open transaction.
    committed: whether the last transaction was committed; None while one is open, or if there was none.
    """

    show: Callable[[Step], None]
    epoch: int = 0
    written: list[Step] = field(default_factory=list)
    committed: bool | None = None


class Coordinator:
    """Decides about transactions by producer and epoch alone, like Kafka for clients without KIP-890."""

    def __init__(self) -> None:
        self._producers: dict[str, _Transactions] = {}

    def begin_epoch(self, producer: str, show: Callable[[Step], None]) -> int:
        """Abort the open transaction and refuse all requests of earlier epochs from now on. Returns the new
        epoch."""
        own = self._producers[producer] = _Transactions(show, 1 + self._epoch_of(producer))
        return own.epoch

    def write(self, producer: str, epoch: int, part: Step) -> None:
        """Raises EpochRefused if the epoch is over. The first write after an end begins a transaction."""
        own = self._of(producer, epoch)
        own.written.append(part)
        own.committed = None

    def end(self, producer: str, epoch: int, commit: bool) -> None:
        """End the transaction that is open.

        Raises EpochRefused if the epoch is over, or if no transaction is open and the last one ended
        differently.
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
    """A request that is delayed on its way.

    parts: it arrives after this many further writes of the producer.
    """

    epoch: int
    commit: bool
    parts: int


class Network:
    """The network between producers and the coordinator. It may delay a request to end a transaction and
    break the connection.

    coordinator: receives the requests.
    held_back: returns whether the next request is delayed.
    arrived: called with a description of a late request's result.
    draws: draws the length of a delay.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        held_back: Callable[[], bool],
        arrived: Callable[[str], None],
        draws: np.random.Generator,
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

    A request to end a transaction, by commit or abort, may go unanswered. Then both connectors take a new
    epoch before anything else, and never send the request again under the old one.

    network: where requests are sent.
    name: the producer's name.
    show: makes a transaction's writes visible.
    """

    def __init__(self, network: Network, name: str, show: Callable[[Step], None]) -> None:
        self._network = network
        self._name = name
        self._show = show
        self._begin_epoch()

    def write(self, parts: Sequence[Step]) -> None:
        """Raises BusUnavailable if the cluster has ended this producer's epoch."""
        try:
            for part in parts:
                self._network.write(self._name, self._epoch, part)
        except EpochRefused as refusal:
            self._begin_epoch()
            raise BusUnavailable(str(refusal)) from None

    def commit(self) -> None:
        """Make the writes visible. Raises BusUnavailable if the request was not answered."""
        if not self._end(commit=True):
            raise BusUnavailable("the commit was not answered")

    def abort(self) -> None:
        """Discard the writes. Without an answer, the new epoch aborts them."""
        self._end(commit=False)

    def _end(self, commit: bool) -> bool:
        try:
            answered = self._network.end(self._name, self._epoch, commit)
        except EpochRefused:
            self._begin_epoch()
            return False
        return answered or self._after_no_answer(commit)

    def _after_no_answer(self, commit: bool) -> bool:
        """Take a new epoch. Returns whether the transaction counts as ended in the requested way."""
        self._begin_epoch()
        return False

    def _begin_epoch(self) -> None:
        self._epoch = self._network.coordinator.begin_epoch(self._name, self._show)
