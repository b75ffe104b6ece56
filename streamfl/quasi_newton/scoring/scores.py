"""The guest's record of each entity's score: the hosts' points, the resulting output, and what of it was
published."""

from __future__ import annotations

from typing import Annotated

import msgspec

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import check_name, check_within
from streamfl.encoding.wire import Count
from streamfl.quasi_newton.rows.table import EntityTable
from streamfl.quasi_newton.state import SCORE
from streamfl.state.changelog import ChangedParts

__all__ = ["BARE", "CALIBRATED", "UNTOLD", "Scores"]

# What was published of an output: nothing, the output, or the output with a probability.
UNTOLD, BARE, CALIBRATED = range(3)
LARGEST_OUTPUT = 1e300

Points = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]


class Score(msgspec.Struct, array_like=True, gc=False):
    """points: by host, None before they came. output: None before all points came, and if the entity has no
    score.

    held_out: whether the model has not learnt from the entity.
    told: what of the output was published.
    revision: number of the entity's predictions so far, under all versions.
    """

    version: Count
    points: list[Points | None]
    output: float | None = None
    held_out: bool = False
    told: Annotated[int, msgspec.Meta(ge=UNTOLD, le=CALIBRATED)] = UNTOLD
    revision: Count = 0


class Scores:
    """The scores of a partition's entities. Forgets each entity that the table forgets.

    hosts: how many there are.
    """

    def __init__(self, parts: ChangedParts, table: EntityTable, hosts: int) -> None:
        self._kept = parts.named(SCORE, check_name, Score, self._restore)
        self._table = table
        self._hosts = hosts
        self._scores: dict[str, Score] = {}
        self.version = 0
        # Names of the present version, cached for each question; None: to be computed again.
        self._open: list[set[str]] | None = None
        self._pending: dict[int, set[str]] = {}
        self._judged: dict[str, int] | None = None
        self.judgements = 0
        """Grows when :attr:`judged` or one of its outputs changes."""

    def begin(self, version: int) -> None:
        """Begin a version of the model: scores of other versions no longer count."""
        self.version = version
        self._look_anew()

    def came(self, name: str) -> None:
        """The table has columns of an entity."""
        if self._open is not None and self._of(name) is None:
            for one in self._open:
                one.add(name)

    def labelled(self, name: str) -> None:
        """The table has a label of an entity."""
        if self._judged is not None:
            self.judgements += self._judge(name)

    def forget(self, name: str) -> None:
        """The table has forgotten the entity."""
        if self._scores.pop(name, None) is not None:
            self._kept.forget(name)
        for one in self._open or ():
            one.discard(name)
        for told in self._pending.values():
            told.discard(name)
        if self._judged is not None and self._judged.pop(name, None) is not None:
            self.judgements += 1

    def open(self, host: int) -> set[str]:
        """Entities that have columns, and lack this host's points."""
        if self._open is None:
            self._open = [set() for _ in range(self._hosts)]
            for name in self._table.with_columns():
                found = self._of(name)
                for number, one in enumerate(self._open):
                    if found is None or found.points[number] is None:
                        one.add(name)
        return self._open[host]

    def put(self, name: str, host: int, points: int) -> bool:
        """A host's points came. Returns whether the points of all hosts are there."""
        found = self._of(name)
        if found is None:
            earlier = self._scores.get(name)
            found = Score(
                self.version, [None] * self._hosts, revision=0 if earlier is None else earlier.revision
            )
            self._scores[name] = found
        self.open(host).discard(name)
        found.points[host] = points
        self._kept.remember(name, found)
        return None not in found.points

    def points(self, name: str) -> list[int]:
        """The points of an entity, by host."""
        return [one for one in self._scores[name].points if one is not None]

    def complete(self, name: str, output: float | None, held_out: bool) -> None:
        """Store the output, now that all points are there. None: the entity has no score."""
        found = self._scores[name]
        found.output, found.held_out = output, held_out
        self._kept.remember(name, found)
        if output is not None:
            for told in self._pending.values():
                told.add(name)
            self.labelled(name)

    def pending(self, told: int) -> set[str]:
        """Entities with an output for which less than ``told`` was published."""
        if told not in self._pending:
            scores = ((name, one) for name, one in self._scores.items() if one.version == self.version)
            self._pending = {
                told: {name for name, one in scores if one.output is not None and one.told < told}
            }
        return self._pending[told]

    def publish(self, name: str, told: int) -> int:
        """Note that ``told`` of the output is published. Returns how many predictions of the entity there
        were before."""
        found = self._scores[name]
        found.told, found.revision = told, found.revision + 1
        self._kept.remember(name, found)
        for wanted, names in self._pending.items():
            if wanted <= told:
                names.discard(name)
        return found.revision - 1

    def output(self, name: str) -> float:
        """The output of an entity that has one."""
        output = self._scores[name].output
        assert output is not None
        return output

    @property
    def judged(self) -> dict[str, int]:
        """Held-out entities with an output and a label, which is -1 or 1."""
        if self._judged is None:
            self._judged = {}
            for name in self._scores:
                self._judge(name)
        return self._judged

    def _restore(self, name: str, found: Score) -> None:
        if len(found.points) != self._hosts or (found.output is not None and None in found.points):
            raise BadRecord(
                "malformed", f"a score in state with points {found.points} of {self._hosts} hosts"
            )
        if found.output is not None:
            check_within(found.output, -LARGEST_OUTPUT, LARGEST_OUTPUT, "output")
        self._scores[name] = found
        self._look_anew()

    def _judge(self, name: str) -> bool:
        """Add an entity to those that the model is judged by. Returns whether it is one of them."""
        assert self._judged is not None
        found, label = self._of(name), self._table.label(name)
        if found is None or not found.held_out or found.output is None or not label:
            return False
        self._judged[name] = label
        return True

    def _of(self, name: str) -> Score | None:
        found = self._scores.get(name)
        return found if found is not None and found.version == self.version else None

    def _look_anew(self) -> None:
        self._open, self._judged = None, None
        self.judgements += 1
        self._pending = {}
