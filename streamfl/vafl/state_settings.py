"""The settings that the state of VAFL's roles depends on, and which of them may change.

A setting that is not listed here must not change, and neither must any new one: the state contains the shape of a network, its
activations, and the optimiser's arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamfl.state.state_settings import StateSettings, by_key
from streamfl.vafl.config import VaflSettings

__all__ = ["coordinator_state_settings", "party_state_settings"]

_PACE = {
    # The sender of each message is checked anyway.
    "federation.members",
    "learning.learning_rate",
    # A partition keeps the choice that it began with.
    "embedding.standardise",
    "learning.batch_size",
    "learning.regularisation",
    "learning.in_flight",
    "learning.catch_up_samples",
    "learning.catch_up_patience_seconds",
    "learning.wait_for",
    "learning.quorum",
    "learning.max_staleness",
    # A partition keeps the start that it remembers.
    "learning.seeded_start",
    "alignment.quorum",
    "alignment.revise",
    "alignment.expiry_seconds",
    "alignment.limit",
    "alignment.reply_seconds",
    "alignment.keep",
    "alignment.requests",
    "alignment.patience_seconds",
    "samples.keyed_by_entity",
    "samples.format",
    "labels.format",
}
# The coordinator's keys. A party's file may have them; they have no effect on its state.
_NOT_A_PARTYS = {"learning.loss", "learning.classes"}
# A release that knows layout 1 has no scale of inputs. It would call the scale's moments an array of another model.
_PARTY_LAYOUT = 2


def _free(content: Mapping[str, Any]) -> set[str]:
    # The ledger counts each release at its cost at the time, and adds releases with other noise. Where a setting must not be
    # removed after a release, the party itself refuses to go on.
    return _PACE | {key for key in content if key.startswith("privacy.")}


def party_state_settings(settings: VaflSettings) -> StateSettings:
    """Settings of a party's state: its network and optimiser, and the features of entities whose gradient has not come."""
    content = by_key(settings, ("federation", "party", "samples", "embedding", "learning", "alignment", "privacy"))
    if settings.samples is not None:
        content["samples.dimension"] = settings.samples.width
    content["learning.optimiser"] = settings.optimiser
    own = {key: value for key, value in content.items() if key not in _NOT_A_PARTYS}
    return StateSettings.of(own, _free(content), _PARTY_LAYOUT)


def coordinator_state_settings(settings: VaflSettings) -> StateSettings:
    """Settings of the coordinator's state: its head and optimiser, and the embeddings and labels of entities."""
    content = by_key(settings, ("federation", "labels", "head", "learning", "alignment", "privacy"))
    content["learning.optimiser"] = settings.optimiser
    return StateSettings.of(content, _free(content))
