"""A member of a consumer group in an SQLite bus: it shows that it lives, watches the others, and knows which
partitions it has.

A member shows that it lives by incrementing a number in its row whenever it polls, restores or commits. When
a member sees another's number unchanged for that member's session timeout, it removes it from the group.
Processes do not compare clocks, so neither setting a clock nor restarting the machine changes who counts as
alive.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable

from streamfl.runtime.assignment import changes, deal
from streamfl.runtime.sqlite.file import Database

__all__ = ["SqliteMembership"]

BEATS_PER_TIMEOUT = 5


class SqliteMembership:
    """One member of a group. It joins when it is made.

    database: the session's own connection.
    group: the group's name.
    partitions: how many partitions each input has.
    session_timeout: seconds of silence after which the others remove this member.
    monotonic: the clock by which others are watched, in seconds.

    owned: the partitions that were reported to the caller.
    generation: the group's generation at that report.
    next_beat: when the member has to increment its number next.
    """

    def __init__(
        self,
        database: Database,
        group: str,
        partitions: int,
        session_timeout: float,
        monotonic: Callable[[], float],
    ) -> None:
        self.owned: frozenset[int] = frozenset()
        self.generation = -1
        self.next_beat = 0.0
        self._database = database
        self._group = group
        self._partitions = partitions
        self._session_timeout = session_timeout
        self._monotonic = monotonic
        self._member = -1
        # By member, its last number, and since when it has it.
        self._watched: dict[int, tuple[int, float]] = {}
        with database.writing() as connection:
            self._join(connection)

    def beat(self) -> None:
        """Call :meth:`count_up` in a transaction of its own, if it is time."""
        if self._monotonic() >= self.next_beat:
            with self._database.writing() as connection:
                self.count_up(connection)

    def count_up(self, connection: sqlite3.Connection) -> None:
        """Increment the member's number."""
        self.next_beat = self._monotonic() + self._session_timeout / BEATS_PER_TIMEOUT
        connection.execute("UPDATE members SET beat = beat + 1 WHERE id = ?", (self._member,))

    def attend(self) -> bool:
        """Stay a member, and remove members that were silent for too long. True: this one was removed, and
        has joined anew."""
        self.beat()
        with self._database.reading() as connection:
            members = connection.execute(
                "SELECT id, beat, timeout FROM members WHERE group_name = ?", (self._group,)
            ).fetchall()
        now = self._monotonic()
        watched = self._watched
        self._watched = {
            member: watched[member] if member in watched and watched[member][0] == beat else (beat, now)
            for member, beat, _ in members
        }
        silent = [
            (member, beat)
            for member, beat, timeout in members
            if member != self._member and now - self._watched[member][1] > timeout
        ]
        absent = self._member not in self._watched
        if not silent and not absent:
            return False
        with self._database.writing() as connection:
            gone = connection.executemany("DELETE FROM members WHERE id = ? AND beat = ?", silent).rowcount
            if absent:
                self._join(connection)
            elif gone > 0:
                _deal(connection, self._group)
        return absent

    def is_current(self, connection: sqlite3.Connection) -> bool:
        """Whether this is a member, and the group's generation is the reported one."""
        current = connection.execute(
            "SELECT generation FROM groups JOIN members ON group_name = name WHERE members.id = ?",
            (self._member,),
        ).fetchone()
        return bool(current == (self.generation,))

    def group_generation(self, connection: sqlite3.Connection) -> int:
        """The group's generation now."""
        (generation,) = connection.execute(
            "SELECT generation FROM groups WHERE name = ?", (self._group,)
        ).fetchone()
        return int(generation)

    def changes(self, connection: sqlite3.Connection, all_anew: bool) -> tuple[list[int], list[int]]:
        """The revoked and the assigned partitions since the last report. all_anew: as in
        :func:`~streamfl.runtime.assignment.changes`."""
        owned = "SELECT partition, since FROM owners WHERE group_name = ? AND member = ?"
        since: dict[int, int] = dict(connection.execute(owned, (self._group, self._member)))
        return changes(self.owned, since, self.generation, all_anew)

    def accept(self, generation: int, went: Iterable[int], came: Iterable[int]) -> None:
        """Note that these changes of this generation were reported to the caller."""
        self.owned = self.owned.difference(went).union(came)
        self.generation = generation

    def leave(self) -> None:
        """Leave the group."""
        with self._database.writing() as connection:
            if connection.execute("DELETE FROM members WHERE id = ?", (self._member,)).rowcount:
                _deal(connection, self._group)

    def _join(self, connection: sqlite3.Connection) -> None:
        connection.execute("INSERT OR IGNORE INTO groups VALUES (?, 0, 0)", (self._group,))
        connection.execute("UPDATE groups SET partitions = ? WHERE name = ?", (self._partitions, self._group))
        timeout = self._session_timeout
        joined = connection.execute(
            "INSERT INTO members (group_name, beat, timeout) VALUES (?, 0, ?)", (self._group, timeout)
        )
        self._member = joined.lastrowid or -1
        self.count_up(connection)
        _deal(connection, self._group)


def _deal(connection: sqlite3.Connection, name: str) -> None:
    """Give every partition of a group an owner."""
    connection.execute("UPDATE groups SET generation = generation + 1 WHERE name = ?", (name,))
    generation, partitions = connection.execute(
        "SELECT generation, partitions FROM groups WHERE name = ?", (name,)
    ).fetchone()
    members = [
        member
        for (member,) in connection.execute(
            "SELECT id FROM members WHERE group_name = ? ORDER BY id", (name,)
        )
    ]
    rows = connection.execute("SELECT partition, member, since FROM owners WHERE group_name = ?", (name,))
    owners = deal(
        partitions, members, {partition: (owner, since) for partition, owner, since in rows}, generation
    )
    connection.execute("DELETE FROM owners WHERE group_name = ?", (name,))
    connection.executemany(
        "INSERT INTO owners VALUES (?, ?, ?, ?)", [(name, p, *owner) for p, owner in owners.items()]
    )
