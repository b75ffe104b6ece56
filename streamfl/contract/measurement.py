"""A figure for the operator of a member, and how it ages."""

from __future__ import annotations

import math

import msgspec

__all__ = ["Measurement"]


class Measurement(msgspec.Struct, frozen=True, gc=False):
    """A figure for the operator: a Prometheus counter or gauge. Labels must not grow with the number of clients.

    headline: whether it is one of the few figures in the log's line of progress.
    known: whether there is a figure yet. If not, the value means nothing, and ``/metrics`` has NaN.
    until: the role's time until which the value is valid; from then on it counts as not known.
    during: spans (begin, end) of the role's time. During each of them the value is one larger, whether messages come or not.
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
        """The measurement at the time ``now``, by the role's clock.

        >>> Measurement("silent", "gauge", "", 1.0, during=((5.0, 8.0), (9.0, 20.0))).at(6.0).value
        2.0
        """
        if self.until == math.inf and not self.during:
            return self
        value = self.value + sum(begin <= now < end for begin, end in self.during)
        return msgspec.structs.replace(self, value=value, known=self.known and now < self.until, until=math.inf, during=())
