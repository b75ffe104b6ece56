"""A figure for whoever operates a member, and how it ages."""

from __future__ import annotations

import math

import msgspec

__all__ = ["Measurement"]


class Measurement(msgspec.Struct, frozen=True, gc=False):
    """A figure for the operator: a Prometheus counter or gauge. Labels must not grow with the number of clients.

    headline: one of the few figures that belong in the log's line of progress.
    known: whether there is a figure yet; if not, the value says nothing, and ``/metrics`` has NaN.
    until: the role's time until which the value says how things stand; from then on it is as if it were not known.
    during: spans of the role's time, from and until, in each of which the value is one larger, whether anything comes or not.
    """

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
        """The measurement as it is at a time, by the clock that the role is given.

        >>> Measurement("silent", "gauge", "", 1.0, during=((5.0, 8.0), (9.0, 20.0))).at(6.0).value
        2.0
        """
        if self.until == math.inf and not self.during:
            return self
        value = self.value + sum(begin <= now < end for begin, end in self.during)
        return msgspec.structs.replace(self, value=value, known=self.known and now < self.until, until=math.inf, during=())
