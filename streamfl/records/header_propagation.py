"""Copies headers of a sample's record to its prediction, so that one sample can be followed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import Field, field_validator

from streamfl.contract.channel_table import USER, Channel
from streamfl.contract.role import Headers, Record
from streamfl.identity.authentication import SEAL
from streamfl.records.predictions import PredictionsSection

__all__ = [
    "EVENT_TIME",
    "LONGEST_HEADERS",
    "Carry",
    "FollowedAcross",
    "FollowedPredictions",
    "carried",
    "carried_nothing",
    "event_time",
    "predictions_channel",
    "time_header",
    "time_in",
]

EVENT_TIME = "streamfl.time"
"""The header with a record's event time, in milliseconds since 1970. Without it the event time is the
record's own time."""
LONGEST_HEADERS = 1_500
"""Most bytes of headers copied for one sample, names included. They are stored while the sample waits."""
FRAMING = 8

TRACES = ["traceparent", "tracestate", "baggage"]
FOLLOWED = [*TRACES, "correlation-id", "correlation_id", "x-correlation-id", "x-request-id", EVENT_TIME]

HeaderName = Annotated[str, Field(min_length=1, max_length=100)]
Carry = Callable[[Record], Headers]
"""From a record to the headers of what is made of it."""


class FollowedPredictions(PredictionsSection):
    """The format of predictions, and what each copies from its sample's record. A prediction has that
    record's key."""

    headers: list[HeaderName] = Field(default=FOLLOWED, max_length=100)
    """Headers that are copied from the sample's record to its prediction, whatever their case. They may have
    1,500 bytes together; headers that do not fit are left out."""
    event_time: bool = False
    """`true`: each prediction has its sample's event time: the sample's header `streamfl.time`, else its
    record's time. It is in the prediction's header of this name, in milliseconds since 1970, and is the time
    of the prediction's record. Left out: the record has the time when it is written."""


class FollowedAcross(PredictionsSection):
    """The format of predictions, and what a party copies from a sample's record for the member that predicts.

    For vertical systems in which the member that predicts reads no samples.
    """

    headers: list[HeaderName] | None = Field(default=None, max_length=100)
    """At a party: headers of a sample's record that the party sends along, for the prediction. Left out:
    none, because other members and readers of predictions see them, and no noise covers them. At the member
    that predicts: which of them a prediction has; left out: `traceparent`, `tracestate`, `baggage`,
    `correlation-id`, `correlation_id`, `x-correlation-id`, `x-request-id` and `streamfl.time`. They may have
    1,500 bytes together."""
    event_time: bool = False
    """`true`: the header `streamfl.time` is sent too: the record's if it has one, else the record's time, in
    milliseconds since
    1970. A party sends its sample's. At the member that predicts it is also the time of the prediction's
    record; left out, that is the time of writing."""

    @field_validator("headers")
    @classmethod
    def _are_no_seals(cls, value: list[str] | None) -> list[str] | None:
        if any(name.lower() == SEAL for name in value or ()):
            raise ValueError(
                f'"{SEAL}" is the header by which members prove their identity; rename the header of your '
                "samples"
            )
        return value

    def carried(self, *, by_party: bool) -> Carry:
        """A function from a record to the headers to copy. by_party: from a sample; else from a party's
        message."""
        default = [] if by_party else FOLLOWED
        return _carry(default if self.headers is None else self.headers, self.event_time)


def carried(section: FollowedPredictions) -> Carry:
    """A function from a sample's record to the headers that its prediction gets."""
    return _carry(section.headers, section.event_time)


def _carry(followed: list[str], timed: bool) -> Carry:
    names = frozenset(name.lower() for name in followed)
    if not names and not timed:
        return carried_nothing

    def carry(record: Record) -> Headers:
        if not record.headers:
            return (time_header(record.timestamp),) if timed else ()
        found, room = [], LONGEST_HEADERS
        for name, content in record.headers:
            # A header that is no time does not replace the record's own time.
            if timed and name == EVENT_TIME and time_in(((name, content),)) is None:
                continue
            if name.lower() in names and (size := len(name.encode()) + len(content) + FRAMING) <= room:
                room -= size
                found.append((name, content))
        if timed and not any(name == EVENT_TIME for name, _ in found):
            found.append(time_header(event_time(record)))
        return tuple(found)

    return carry


def carried_nothing(_record: Record) -> Headers:
    """No headers, whatever the record has."""
    return ()


def event_time(record: Record) -> float:
    """A record's event time, in seconds: its header's, or else the record's own time."""
    told = time_in(record.headers)
    return record.timestamp if told is None else told


def time_in(headers: Headers) -> float | None:
    """The time in a record's headers, in seconds."""
    for name, content in headers:
        if name == EVENT_TIME and content.removeprefix(b"-").isdigit() and len(content) < 17:
            return int(content) / 1000
    return None


def predictions_channel(
    section: FollowedPredictions | FollowedAcross,
    topic: str,
    writer: str,
    caution: str = "",
    placed_like: str = "",
) -> Channel:
    """The channel of the predictions that ``writer`` sends to users.

    caution: as in :class:`Channel`.
    placed_like: the channel of the message into whose partition a prediction goes; empty: its key decides.
    """
    return Channel(
        name="predictions",
        links={(writer, USER): topic},
        time_of=time_in if section.event_time else None,
        caution=caution,
        like=placed_like,
        placed=bool(placed_like),
    )


def time_header(seconds: float) -> tuple[str, bytes]:
    """The header for a time in seconds."""
    return EVENT_TIME, b"%d" % round(1000 * seconds)
