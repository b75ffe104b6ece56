"""A role that takes samples of clients one by one, and remembers one value of each client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Annotated, Any, Generic, Protocol, TypeVar

from pydantic import Field

from streamfl.configuration.settings import FederationSection
from streamfl.contract.measurement import Counts, Measurement, gauge
from streamfl.contract.role import BadRecord, Received, Rejection, Send
from streamfl.encoding.changelog_checks import check_name
from streamfl.roles.task_role import PartsTask, TaskRole
from streamfl.state.changeable import CHANGEABLE
from streamfl.state.changelog import ChangedParts
from streamfl.state.table import StateTable

__all__ = ["ClientCounts", "ClientRole", "ClientValues", "ClientsFederation", "client_state"]


class _OfClient(Protocol):
    @property
    def client(self) -> str: ...


Value = TypeVar("Value")
Message = TypeVar("Message", bound=_OfClient)


class ClientsFederation(FederationSection):
    """Who learns together: clients, of each of which something is remembered."""

    clients: Annotated[int, CHANGEABLE] = Field(default=100, ge=1, le=100_000)
    """The most clients of one partition; samples of others are refused."""


def client_state(content: type) -> StateTable:
    """The table of a role that remembers one value of each client, and nothing else.

    content: the type of a value. Its docstring says what the value holds.

    >>> class Mean:
    ...     "How many labels, and their mean."
    >>> [(row.key, row.meaning) for row in client_state(Mean).rows]
    [('client/NAME', 'How many labels, and their mean.')]
    """
    table, meaning = StateTable(), " ".join((content.__doc__ or "").split())
    limit = "`federation.clients`; others are refused."
    table.row("client/NAME", meaning, "When it changes.", limit, client=check_name)
    return table


class ClientValues(PartsTask, Generic[Value]):
    """One value of each client of a partition. There is no room for more than ``limit`` clients.

    content: the type of a value, in MessagePack.
    """

    def __init__(self, content: type[Value], limit: int) -> None:
        [row] = client_state(content).rows
        self.parts = ChangedParts("this role")
        self._limit = limit
        self._values: dict[str, Value] = {}
        self._remembered = self.parts.named(row, check_name, content, self._values.__setitem__)

    def __len__(self) -> int:
        return len(self._values)

    def items(self) -> Iterable[tuple[str, Value]]:
        """Each client with its value."""
        return self._values.items()

    def get(self, client: str) -> Value | None:
        """The client's value; None if it has none. BadRecord for a new client without room."""
        value = self._values.get(client)
        if value is None and len(self._values) >= self._limit:
            raise BadRecord(
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


class ClientCounts(Counts):
    """What every role measures that remembers one value of each client. A subclass declares its counters."""

    clients = gauge("Clients that are known.")


class ClientRole(TaskRole[ClientValues[Value]], Generic[Message, Value]):
    """Calls ``take`` for each sample. Opening, restoring, remembering, the bound, refusals and ``forget`` are
    the same for all.

    content, limit: of :class:`ClientValues`.
    counts: the role's counters.
    tables: by the channel of a global table, what is called with each of its messages.
    """

    wake_at: float | None = None

    def __init__(
        self,
        content: type[Value],
        limit: int,
        counts: ClientCounts,
        tables: Mapping[str, Callable[[Any], None]] = MappingProxyType({}),
    ) -> None:
        super().__init__(lambda _partition: ClientValues(content, limit), "the value of a client")
        self._counts = counts
        self._tables = tables

    @property
    def values(self) -> dict[str, Value]:
        """The value of each client, of all partitions."""
        return dict(chain.from_iterable(values.items() for values in self._tasks.values()))

    def take(self, sample: Message, value: Value | None) -> tuple[Sequence[Send], Value | None]:
        """The answers to a sample, and the client's new value; None: it stays. BadRecord refuses the sample.

        value: the client's value so far; None if it has none.
        """
        raise NotImplementedError

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        replies: list[Send | Rejection] = []
        for received in batch:
            try:
                replies += self._answers(received)
            except BadRecord as error:
                replies.append(Rejection(received, error))
        return replies

    def _answers(self, received: Received) -> Sequence[Send]:
        message, heard = received.message, self._tables.get(received.channel)
        if heard is not None:
            heard(message)
            return ()
        values = self._tasks[received.partition]
        sends, value = self.take(message, values.get(message.client))
        if value is not None:
            values.put(message.client, value)
        return sends

    def forget(self, name: str) -> bool:
        # Every partition forgets it.
        return any([values.forget(name) for values in self._tasks.values()])  # noqa: C419

    def measure(self) -> Iterable[Measurement]:
        yield from self._counts.measure_counts()
        yield ClientCounts.clients(sum(map(len, self._tasks.values())))
