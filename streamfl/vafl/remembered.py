"""Which settings the state of VAFL's roles is made with, and which of them may change.

What is not named here as free to change must stay, a new key included: the shape of a network, its activations, and what an
optimiser keeps beside its parameters are all in the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamfl.made_with import MadeWith, by_key
from streamfl.vafl.config import VaflSettings

__all__ = ["coordinator_made_with", "party_made_with"]

_PACE = {
    # Who may speak for whom is looked at with each message.
    "federation.members",
    "learning.learning_rate",
    "learning.batch_size",
    "learning.regularisation",
    "learning.in_flight",
    "learning.wait_for",
    "learning.max_staleness",
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
# The coordinator's, which a party's file may have and nothing comes of.
_NOT_A_PARTYS = {"learning.loss", "learning.classes"}


def _free(content: Mapping[str, Any]) -> set[str]:
    # The ledger counts what was released by what it cost then: other noise from now on is counted on top of it. What may not be
    # taken away where something was released is for the party itself to refuse.
    return _PACE | {key for key in content if key.startswith("privacy.")}


def party_made_with(settings: VaflSettings) -> MadeWith:
    """Of a party: its network and optimiser, and the features of entities whose gradient has not come."""
    content = by_key(settings, ("federation", "party", "samples", "embedding", "learning", "alignment", "privacy"))
    if settings.samples is not None:
        features = settings.samples.features
        content["samples.dimension"] = len(features) if isinstance(features, list) else settings.samples.dimension
    content["learning.optimiser"] = settings.optimiser
    return MadeWith.of({key: value for key, value in content.items() if key not in _NOT_A_PARTYS}, _free(content))


def coordinator_made_with(settings: VaflSettings) -> MadeWith:
    """Of the coordinator: its head and optimiser, and the embeddings and labels of entities."""
    content = by_key(settings, ("federation", "labels", "head", "learning", "alignment", "privacy"))
    content["learning.optimiser"] = settings.optimiser
    return MadeWith.of(content, _free(content))
