"""A role that takes samples of clients one by one, and remembers one value of each client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from streamfl.contract.measurement import Counts, Measurement
from streamfl.contract.role import PeerError, Received, Rejection, Send
from streamfl.encoding.changelog_checks import check_name
from streamfl.roles.task_role import PartsTask, TaskRole
from streamfl.state.changelog import ChangedParts
from streamfl.state.table import StateRow

__all__ = ["ClientRole", "ClientValues"]


class _OfClient(Protocol):
    @property
    def client(self) -> str: ...


Value = TypeVar("Value")
Message = TypeVar("Message", bound=_OfClient)


class ClientValues(PartsTask, Generic[Value]):
    """One value of each client of a partition. There is no room for more than ``limit`` clients.

    row: of the changelog, with the key ``client/NAME``.
    content: the type of a value, in MessagePack.
    """

    def __init__(self, row: StateRow, content: type[Value], limit: int) -> None:
        self.parts = ChangedParts("this role")
        self._limit = limit
        self._values: dict[str, Value] = {}
        self._remembered = self.parts.named(row, check_name, content, self._values.__setitem__)

    def __len__(self) -> int:
        return len(self._values)

    def get(self, client: str) -> Value | None:
        """The client's value; None if it has none. PeerError for a new client without room."""
        value = self._values.get(client)
        if value is None and len(self._values) >= self._limit:
            raise PeerError(
                "unknown_client", f"{len(self._values)} clients are known already: raise federation.clients"
            )
        return value

    def put(self, client: str, value: Value) -> None:
        self._values[client] = value
        self._remembered.remember(client, value)

    def forget(self, client: str) -> bool:
        """Remove a client. False if it is not known."""
        if self._values.pop(client, None) is None:
            return False
        self._remembered.forget(client)
        return True


class ClientRole(TaskRole[ClientValues[Value]], Generic[Message, Value]):
    """Calls ``take`` for each sample. Opening, restoring, remembering, the bound, refusals and ``forget`` are
    the same for all.

    row, content, limit: of :class:`ClientValues`.
    counts: the role's counters.
    """

    wake_at: float | None = None

    def __init__(self, row: StateRow, content: type[Value], limit: int, counts: Counts) -> None:
        super().__init__(lambda _partition: ClientValues(row, content, limit), "the value of a client")
        self._counts = counts

    @property
    def known(self) -> int:
        """How many clients are known, in all partitions."""
        return sum(map(len, self._tasks.values()))

    def take(self, sample: Message, value: Value | None) -> tuple[Send, Value | None]:
        """The answer to a sample, and the client's new value; None: it stays. PeerError refuses the sample.

        value: the client's value so far; None if it has none.
        """
        raise NotImplementedError

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        replies: list[Send | Rejection] = []
        for received in batch:
            values, client = self._tasks[received.partition], received.message.client
            try:
                reply, value = self.take(received.message, values.get(client))
            except PeerError as error:
                replies.append(Rejection(received, error))
                continue
            if value is not None:
                values.put(client, value)
            replies.append(reply)
        return replies

    def forget(self, name: str) -> bool:
        # Every partition forgets it.
        return any([values.forget(name) for values in self._tasks.values()])  # noqa: C419

    def measure(self) -> Iterable[Measurement]:
        return self._counts.measure_counts()
