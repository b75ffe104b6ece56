"""How a party announces its entities: each once as it becomes complete, and all that wait anew when the
server asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec

from streamfl.contract.role import BadRecord
from streamfl.dp_frank_wolfe.messages import Entities, read_content
from streamfl.dp_frank_wolfe.state import SAID_AGAIN
from streamfl.encoding.wire import Count

if TYPE_CHECKING:
    from streamfl.dp_frank_wolfe.messages import Message
    from streamfl.dp_frank_wolfe.party.role import PartyTask

__all__ = ["Announcing"]

ANNOUNCED_BYTES = 60_000
# Names that are announced anew in a tick. The others wait for the next one, so that no step is too large.
AGAIN_AT_ONCE = 50_000


class _Again(msgspec.Struct, array_like=True, frozen=True):
    """asked: digest of the server's latest question. due: whether it is to be answered.

    begun: whether the beginning was sent. after, last: the names that are still to be sent are those with
    numbers after the one, up to the other.
    """

    asked: Annotated[bytes, msgspec.Meta(max_length=32)] = b""
    due: bool = False
    begun: bool = False
    after: int = -1
    last: Count = 0


class Announcing:
    """Sends the names of complete entities."""

    def __init__(self, party: PartyTask) -> None:
        self._party = party
        self._remember_again = party.parts.single(SAID_AGAIN, _Again, self._restore)
        self._again = _Again()

    @property
    def is_due(self) -> bool:
        """Whether there is something to announce."""
        return self._again.due or self._party.table.has_new

    def take_question(self, message: Message, heard: bytes) -> None:
        """The server asks for all names anew. What it knows may be of another run, or a stranger's."""
        entities: Entities = read_content(message.content, Entities)
        if entities.names:
            raise BadRecord("malformed", "the server announces no entities")
        if heard == self._again.asked:
            self._party.outbox.counts.repeated_messages += 1
            return
        self._keep(_Again(heard, True))

    def announce(self) -> None:
        """Announces what is new. What the server asked for comes first."""
        if self._again.due:
            self._announce_again()
        for names in self._in_messages(self._allowed(self._party.table.new)):
            self._party.outbox.counts.announced_entities += len(names)
            self._party.send_names(names, self._party.table.announce(names))

    def _announce_again(self) -> None:
        party, again = self._party, self._again
        table = party.table
        if not again.begun:
            # Whatever was announced before this message counts no longer.
            party.send_names([], 0)
            again = _Again(again.asked, True, True, -1, table.latest)
        found = table.announced_between(again.after, again.last)[:AGAIN_AT_ONCE]
        allowed = set(self._allowed([name for _, name in found]))
        for first, names in _runs((number, name) for number, name in found if name in allowed):
            at = first
            for some in self._in_messages(names):
                party.send_names(some, at)
                at += len(some) if first else 0
        is_over = len(found) < AGAIN_AT_ONCE
        after = again.last if is_over else found[-1][0]
        self._keep(_Again(again.asked, not is_over, not is_over, after, again.last))

    def _allowed(self, names: Iterable[str]) -> Iterator[str]:
        party = self._party
        for name in names:
            if party.ledger.allows(name):
                yield name
            else:
                # The ledger has become full meanwhile.
                party.table.forget([name])
                party.outbox.counts.spent_entities += 1

    def _in_messages(self, names: Iterable[str]) -> Iterator[list[str]]:
        some: list[str] = []
        size = 0
        for name in names:
            if size + len(name.encode()) + 3 > ANNOUNCED_BYTES:
                yield some
                some, size = [], 0
            some.append(name)
            size += len(name.encode()) + 3
        if some:
            yield some

    def _keep(self, again: _Again) -> None:
        self._again = again
        self._remember_again(again)

    def _restore(self, again: _Again) -> None:
        self._again = again


def _runs(numbered: Iterable[tuple[int, str]]) -> list[tuple[int, list[str]]]:
    """Names with numbers that follow one another, with the first of these; those without a number together.

    numbered: ascending.
    """
    runs: list[tuple[int, list[str]]] = []
    for number, name in numbered:
        if runs and number == (runs[-1][0] and runs[-1][0] + len(runs[-1][1])):
            runs[-1][1].append(name)
        else:
            runs.append((number, [name]))
    return runs
