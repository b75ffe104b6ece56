"""Metrics for the operator of a member: each is declared once; measurements and PromQL are made from the
declaration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, Literal, TypeVar, overload

import msgspec

__all__ = [
    "PREFIX",
    "Counted",
    "Counts",
    "Histogram",
    "Measurement",
    "Metric",
    "counter",
    "declared",
    "gauge",
    "histogram",
]

PREFIX = "streamfl_"
"""Begins the names of metrics in ``/metrics``."""


class Measurement(msgspec.Struct, frozen=True, gc=False):
    """A figure for the operator: a Prometheus counter or gauge. Labels must not grow with the number of
    clients.

    headline: whether it is one of the few figures in the log's line of progress.
    known: whether there is a figure yet. If not, the value means nothing, and ``/metrics`` has NaN.
    until: the role's time until which the value is valid; from then on it counts as not known.
    during: spans (begin, end) of the role's time. During each of them the value is one larger, whether
    messages come or not."""

    name: str
    kind: str
    help: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    headline: bool = False
    known: bool = True
    until: float = math.inf
    during: tuple[tuple[float, float], ...] = ()

    def at(self, now: float) -> Measurement:
        """The measurement at the time ``now``, by the role's clock.

        >>> Measurement("silent", "gauge", "", 1.0, during=((5.0, 8.0), (9.0, 20.0))).at(6.0).value
        2.0
        """
        if self.until == math.inf and not self.during:
            return self
        value = self.value + sum(begin <= now < end for begin, end in self.during)
        return msgspec.structs.replace(
            self, value=value, known=self.known and now < self.until, until=math.inf, during=()
        )


class Metric:
    """A metric, declared as an attribute of a class; the attribute's name is the metric's name.

    kind: "counter", "gauge" or "histogram".
    help: what it means.
    headline: as in :class:`Measurement`.
    labels: every value of each label; None: the values are known only while a worker runs.
    prefix: begins its name in ``/metrics``. A class whose metrics another library measures says its own, as
    ``prefix``.

    A call gives a measurement. In an f-string it is the metric's name in PromQL.

    >>> class Means:
    ...     clients = gauge("Clients that are known")
    >>> Means.clients(3).value, f"max({Means.clients})"
    (3, 'max(streamfl_clients)')
    """

    def __init__(
        self, kind: str, help: str, headline: bool, labels: Mapping[str, Sequence[str] | None]
    ) -> None:
        self.kind = kind
        self.help = help
        self.headline = headline
        self.labels = labels
        self.name = ""
        self.prefix = PREFIX

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.prefix = getattr(owner, "prefix", self.prefix)

    def __str__(self) -> str:
        return f"{self.prefix}{self.name}{'_total' if self.kind == 'counter' else ''}"

    def __call__(
        self,
        value: float,
        *labels: str,
        known: bool = True,
        until: float = math.inf,
        during: tuple[tuple[float, float], ...] = (),
    ) -> Measurement:
        """A measurement. labels: the value of each label; the others as in :class:`Measurement`."""
        named = tuple(zip(self.labels, labels, strict=True))
        return Measurement(self.name, self.kind, self.help, value, named, self.headline, known, until, during)

    def where(self, *matchers: str, **labels: str | tuple[str, ...]) -> str:
        """The metric's series in PromQL that match. labels: one value of a label of the metric, or several.

        ValueError if the metric does not have the label or the value.

        >>> class Means:
        ...     refused = counter("Labels refused", reason=("late", "twice"))
        >>> Means.refused.where('role="mean"', reason="late")
        'streamfl_refused_total{role="mean",reason="late"}'
        """
        chosen = [*matchers]
        for label, value in labels.items():
            values, sign = ((value,), "=") if isinstance(value, str) else (value, "=~")
            if label not in self.labels or not {*values} <= {*(self.labels[label] or values)}:
                raise ValueError(
                    f"{self} has no label {label} with the value {value!r}: its labels are {self.labels}"
                )
            chosen.append(f'{label}{sign}"{"|".join(values)}"')
        return f"{self}{{{','.join(chosen)}}}" if chosen else str(self)


class Histogram(Metric):
    """A histogram. buckets: their upper ends.

    >>> class Means:
    ...     seconds = histogram("Seconds of a step", (0.1, 1.0))
    >>> print(Means.seconds.part("sum"))
    streamfl_seconds_sum
    """

    def __init__(
        self, help: str, buckets: Sequence[float], labels: Mapping[str, Sequence[str] | None]
    ) -> None:
        super().__init__("histogram", help, False, labels)
        self.buckets = buckets

    def part(self, name: Literal["bucket", "sum", "count"]) -> Metric:
        """One of the three metrics that Prometheus stores for it."""
        found = Metric(self.kind, self.help, self.headline, self.labels)
        found.name = f"{self.name}_{name}"
        return found


Value = TypeVar("Value", int, dict[str, int])


class Counted(Metric, Generic[Value]):
    """A counter. As an attribute of an object it is the object's own count: an int, or ints by the value of
    the only label."""

    @overload
    def __get__(self, counts: None, owner: type) -> Counted[Value]: ...

    @overload
    def __get__(self, counts: object, owner: type) -> Value: ...

    def __get__(self, counts: object | None, owner: type) -> Counted[Value] | Value:
        if counts is None:
            return self
        # Python looks here only until the object has an attribute of its own.
        zeros = [dict.fromkeys(values or (), 0) for values in self.labels.values()]
        start: Value = vars(counts).setdefault(self.name, zeros[0] if zeros else 0)
        return start


@overload
def counter(help: str, *, headline: bool = False) -> Counted[int]: ...


@overload
def counter(
    help: str, *, headline: bool = False, **labels: Sequence[str] | None
) -> Counted[dict[str, int]]: ...


def counter(
    help: str, *, headline: bool = False, **labels: Sequence[str] | None
) -> Counted[int] | Counted[dict[str, int]]:
    """Declare a counter. labels: as in :class:`Metric`."""
    return Counted("counter", help, headline, labels)


def gauge(help: str, *, headline: bool = False, **labels: Sequence[str] | None) -> Metric:
    """Declare a gauge. labels: as in :class:`Metric`."""
    return Metric("gauge", help, headline, labels)


def histogram(help: str, buckets: Sequence[float], **labels: Sequence[str] | None) -> Histogram:
    """Declare a histogram. buckets: the upper ends of its buckets. labels: as in :class:`Metric`."""
    return Histogram(help, buckets, labels)


def declared(*groups: type) -> list[Metric]:
    """The metrics that classes declare, in the order of their text. Those of a base class come first."""
    bases = (base for group in groups for base in reversed(group.__mro__))
    return [found for base in bases for found in vars(base).values() if isinstance(found, Metric)]


class Counts:
    """Counts since the process began. A subclass declares its counters.

    >>> class Means(Counts):
    ...     samples = counter("Samples predicted")
    ...     refused = counter("Labels refused", reason=("late", "twice"))
    >>> means = Means()
    >>> means.samples += 2
    >>> means.refused["late"] += 1
    >>> [one.value for one in means.measure_counts()]
    [2, 1, 0]
    """

    def measure_counts(self) -> Iterator[Measurement]:
        """Every counter, in the order in which they are declared."""
        for metric in declared(type(self)):
            if isinstance(metric, Counted):
                count = getattr(self, metric.name)
                yield from (
                    (metric(one, label) for label, one in count.items()) if metric.labels else [metric(count)]
                )
