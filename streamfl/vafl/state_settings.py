"""The settings that the state of VAFL's roles depends on.

The state contains the shape of a network, its activations, and the optimiser's arrays. The ledger counts each
release at its cost at the time, and adds releases with other noise: settings of privacy may change. Where one
must not be removed after a release, the party itself refuses to go on.
"""

from __future__ import annotations

from streamfl.state.changeable import changeable_keys
from streamfl.state.state_settings import StateSettings, by_key
from streamfl.vafl.config import COORDINATOR, PARTY, VaflSettings

__all__ = ["coordinator_state_settings", "party_state_settings"]

# The coordinator's keys. A party's file may have them; they have no effect on its state.
_NOT_A_PARTYS = {"learning.loss", "learning.classes"}
# A release that knows layout 1 has no scale of inputs. It would call the scale's moments an array of another
# model.
_PARTY_LAYOUT = 2


def party_state_settings(settings: VaflSettings) -> StateSettings:
    """Settings of a party's state: its network and optimiser, and the features of entities whose gradient has
    not come."""
    content = by_key(
        settings, ("federation", "party", "samples", "embedding", "learning", "alignment", "privacy")
    )
    if settings.samples is not None:
        content["samples.dimension"] = settings.samples.width
    content["learning.optimiser"] = settings.optimiser
    own = {key: value for key, value in content.items() if key not in _NOT_A_PARTYS}
    return StateSettings.of(own, changeable_keys(settings, PARTY), _PARTY_LAYOUT)


def coordinator_state_settings(settings: VaflSettings) -> StateSettings:
    """Settings of the coordinator's state: its head and optimiser, and the embeddings and labels of
    entities."""
    content = by_key(settings, ("federation", "labels", "head", "learning", "alignment", "privacy"))
    content["learning.optimiser"] = settings.optimiser
    return StateSettings.of(content, changeable_keys(settings, COORDINATOR))
