"""The log's line of progress: what a worker has done since the last line, and its present figures, even if
nothing happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from streamfl.contract.role import Measurement

__all__ = ["ProgressLine"]

# A new user looks at the log for some seconds, not for a minute.
FIRST_SECONDS = 10.0

Fact = float | int | str | Mapping[str, int]


class ProgressLine:
    """Makes the facts of the line from measurements that are marked ``headline``, under the names that they
    have in ``/metrics``.

    every: seconds between two lines, 0 for none; the first comes after ``FIRST_SECONDS`` at the latest.
    clock: seconds that never run backwards. For a counter the line has the increase since the last line.
    Measurements of one name are added up over their labels, and the line also has each label's share of a
    counter that grew.

    >>> progress = ProgressLine(60.0, clock=iter([0.0, 5.0, 10.0]).__next__)
    >>> progress.due(), progress.due()
    (False, True)
    """

    def __init__(self, every: float, clock: Callable[[], float]) -> None:
        self._every = every
        self._clock = clock
        self._last = clock()
        self._next = self._last + min(every, FIRST_SECONDS)
        self._counted: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def due(self) -> bool:
        """Whether it is time for a line."""
        return self._every > 0 and self._clock() >= self._next

    def line(self, measurements: Iterable[Measurement], backlog: str | None = None) -> dict[str, Fact]:
        """The facts of a line written now. backlog: a sentence on what the role works off."""
        now = self._clock()
        facts: dict[str, Fact] = {"seconds": round(now - self._last)}
        self._last, self._next = now, now + self._every
        sums: dict[str, float] = {}
        parts: dict[str, dict[str, int]] = {}
        for one in measurements:
            if not one.headline or not one.known:
                continue
            value = one.value
            if one.kind == "counter":
                before = self._counted.get((one.name, one.labels), 0.0)
                self._counted[one.name, one.labels] = value
                value = max(0.0, value - before)
                if value and one.labels:
                    parts.setdefault(f"{one.name}_by_{one.labels[0][0]}", {})[one.labels[0][1]] = int(value)
            sums[one.name] = sums.get(one.name, 0.0) + value
        for name, value in sums.items():
            facts[name] = int(value) if float(value).is_integer() else float(f"{value:.4g}")
        return {**facts, **parts, **({} if backlog is None else {"backlog": backlog})}
