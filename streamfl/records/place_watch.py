"""Checks that several members' records of one entity come in one partition: in two they never meet."""

from __future__ import annotations

from collections.abc import Iterable

from streamfl.contract.role import OperatorNotice

__all__ = ["PlaceWatch"]

KNOWN = 10_000
# A mistake is reported until this many records came without it, so that a stray record is not reported for
# ever.
LATEST = 1_000


class PlaceWatch:
    """Looks at the entities that come to a worker; stores no state over a restart and decides nothing.

    It knows the partition of the latest 10,000 entities. It does not see other workers' partitions.
    """

    def __init__(self) -> None:
        self._places: dict[str, tuple[int, str]] = {}
        self._seen = 0
        self._found: tuple[int, str] | None = None
        self._said = False

    def came(self, partition: int, source: str, names: Iterable[str]) -> None:
        """These entities came in ``partition``. source: what brought them, for the text."""
        here = partition, source
        for name in names:
            self._seen += 1
            there = self._places.get(name)
            if there is None:
                if len(self._places) >= KNOWN:
                    del self._places[next(iter(self._places))]
                self._places[name] = here
            elif there[0] != partition:
                self._places[name] = here
                self._found = (
                    self._seen,
                    (
                        f"{name!r} came in partition {there[0]} with {there[1]} and in partition {partition} "
                        f"with {source}: there they never meet. Write all members' topics with the same "
                        "record keys, by the same partitioner, or have one rekeyed: [samples.rekey] or "
                        "[labels.rekey] names the topic, and `streamfl rekey CONFIG` writes it"
                    ),
                )

    @property
    def disorder(self) -> str | None:
        """The mistake, if it was seen lately."""
        return None if self._found is None or self._seen - self._found[0] >= LATEST else self._found[1]

    def notices(self) -> Iterable[OperatorNotice]:
        """The mistake for the log, once."""
        if self._found is not None and not self._said:
            self._said = True
            yield OperatorNotice("keyed_otherwise", self._found[1], of_records=True)
