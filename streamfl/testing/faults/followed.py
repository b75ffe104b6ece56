"""Checks that a prediction has the headers of its own sample, even if workers were killed between the two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.role import Headers
from streamfl.records.header_propagation import FollowedAcross, FollowedPredictions
from streamfl.runtime.bus import Bus

__all__ = ["astray", "traced"]

TRACE = "traceparent"


def traced(key: bytes) -> Headers:
    """Headers that name the record's key."""
    return ((TRACE, key),)


def astray(bus: Bus, members: Iterable[RoleSettings]) -> str:
    """Describes predictions with another sample's trace, or says that no prediction has one. Empty: all is
    correct.

    A system whose settings promise no headers may leave them out, but may not write another sample's.
    """
    members = list(members)
    promised = any(TRACE in _promised(settings) for settings in members)
    for topic in {settings.predictions_topic for settings in members}:
        if not bus.describe([topic]):
            continue
        found = [(record.key, dict(record.headers).get(TRACE)) for record in bus.read(topic)]
        if wrong := [one for one in found if one[1] not in (None, one[0])]:
            return f"predictions with the trace of another sample: {wrong[:3]}"
        if promised and found and not any(trace for _, trace in found):
            return f"none of {len(found)} predictions has its sample's trace"
    return ""


def _promised(settings: RoleSettings) -> Sequence[str]:
    predictions = getattr(settings, "predictions", None)
    return (
        (predictions.headers or ()) if isinstance(predictions, FollowedPredictions | FollowedAcross) else ()
    )
