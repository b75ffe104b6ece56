"""Refuses a received round that its active party may not ask of the others."""

from __future__ import annotations

import numpy as np

from streamfl.contract.role import BadRecord
from streamfl.fdskl.config import FdsklSettings
from streamfl.fdskl.messages import (
    CARRIED_BYTES,
    DISTANCES,
    KNOWN,
    LARGEST_BANDWIDTH,
    MOST_DISTANCES,
    MOST_ENTITIES,
    MOST_RANGES,
    OUTPUTS,
    PHASES,
    SMALLEST_BANDWIDTH,
    Round,
)
from streamfl.fdskl.sums.contributions import numbers_of

__all__ = ["checked_root"]


def checked_root(message: Round, settings: FdsklSettings) -> int:
    """The number of the active party that asks, which is the root of the sum. BadRecord for what it may not
    ask."""
    parties, actives = settings.federation.parties, settings.federation.actives
    root = next((party for party in actives if parties[party] == message.sender), None)
    if root is None:
        raise BadRecord("forged", f"a round of {message.sender!r}, which is not the active party")
    if len(message.incarnations) != len(parties):
        text = f"a round with {len(message.incarnations)} incarnations of {len(parties)} parties"
        raise BadRecord("malformed", text)
    if len(set(message.incarnations)) < len(message.incarnations):
        # A round of one active party with another one's incarnation would shut out that party's own rounds.
        raise BadRecord("malformed", "a round in which two parties have the same incarnation")
    if len(message.entities) > MOST_ENTITIES or len(message.ranges) > MOST_RANGES:
        text = f"a round of {len(message.entities)} entities and {len(message.ranges)} ranges of features"
        raise BadRecord("oversized", f"{text}: at most {MOST_ENTITIES} and {MOST_RANGES} are expected")
    purposes = (PHASES, DISTANCES, KNOWN, *((OUTPUTS,) if len(actives) > 1 else ()))
    if message.purpose not in purposes or not message.entities:
        raise BadRecord(
            "malformed", f"a round of purpose {message.purpose} with {len(message.entities)} entities"
        )
    features = sum(one.count for one in message.ranges)
    if message.purpose == DISTANCES:
        if features or len(message.entities) % 2 or len(message.entities) > 2 * MOST_DISTANCES:
            text = f"an odd number of entities, or for more than {MOST_DISTANCES} distances"
            raise BadRecord("malformed", f"a round of distances asks for features, or for {text}")
        if settings.learning.bandwidth is not None:
            text = (
                "learning.bandwidth is set at this party. Set it at the active party too, or leave it out "
                "here"
            )
            raise BadRecord("configuration", f"a round of distances, and {text}")
    elif message.purpose == KNOWN:
        if message.ranges:
            raise BadRecord("malformed", f"a round that asks who knows entities asks for {features} features")
    elif not (
        SMALLEST_BANDWIDTH <= message.bandwidth <= LARGEST_BANDWIDTH
        and all(one.count for one in message.ranges)
        and message.ranges
    ):
        raise BadRecord(
            "malformed", f"a round of {features} features with the bandwidth {message.bandwidth:g}"
        )
    if features > 2 * settings.learning.features_limit + CARRIED_BYTES or any(
        one.first > 2**52 for one in message.ranges
    ):
        raise BadRecord("oversized", f"a round of {features} features")
    count, dtype = numbers_of(message, settings.aggregation.circle_bits)
    if count * np.dtype(dtype).itemsize > CARRIED_BYTES + 1024:
        raise BadRecord("oversized", f"a round of {count} numbers, which is more than a record holds")
    return root
