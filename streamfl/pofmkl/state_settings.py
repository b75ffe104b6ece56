"""The settings that the state of POF-MKL's roles depends on.

What was learnt stays valid when clients learn and send more, less or faster: the parameters are sums of steps
of any size, and K scales only later steps.
"""

from __future__ import annotations

from typing import Any

from streamfl.configuration.shared import shared_keys
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.kinds import CLIENT, SERVER
from streamfl.state.changeable import changeable_keys
from streamfl.state.state_settings import StateSettings, by_key

__all__ = ["client_state_settings", "federation_settings", "pace_settings", "server_state_settings"]

# The fingerprint is made of these, and of what else must be the same at all members and must stay.
_FEDERATION = {"federation.name", "federation.seed", "federation.shards", "federation.features"}

# May change, but server and clients need the same: K, and whether there are rounds.
_SHARED_PACE = {"federation.clients", "learning.staleness"}


def client_state_settings(settings: PofmklSettings) -> StateSettings:
    """The settings that a client's state depends on.

    label_range and input_norm must stay with the default learner too. It scales by running moments, and
    these, the samples that it keeps and the forecasts that wait for their label are all in the old unit.
    Another topic, client field or label is another stream: the stored positions, names and target belong to
    the old one.
    """
    content = _effective(
        settings, ("federation", "samples", "labels", "learning", "kernels", "experts", "drift", "uplink")
    )
    free = changeable_keys(settings, CLIENT)
    if settings.samples is not None:
        # The number of inputs, however they are given.
        content["samples.dimension"] = settings.samples.width
        if settings.samples.label is None:
            # Without a label nothing was learnt, so any label may be set later.
            del content["samples.label"]
    if settings.labels is None:
        # Without [labels] a sample's name is only shown. With [labels] it joins sample and label.
        free = free | {"samples.sample_id"}
    for name in settings.experts.river:
        # An expert's state depends on how it was created. Its largest state may change.
        if (model := settings.models.get(name)) is not None:
            content |= {f"models.{name}.make": model.make, f"models.{name}.parameters": model.parameters}
    # A client with labels on their own topic stores its state in another way than one whose samples have
    # labels.
    content["labels.topic"] = None if settings.labels is None else settings.labels.topic
    return StateSettings.of(content, free)


def server_state_settings(settings: PofmklSettings) -> StateSettings:
    """The settings that the server's state depends on: its parameters and the state of its step."""
    content = _effective(settings, ("federation", "learning", "kernels", "uplink"))
    # The fingerprint of what was learnt has the features' names, once they are set.
    return StateSettings.of(content, changeable_keys(settings, SERVER), set_once={"federation.features"})


def federation_settings(settings: PofmklSettings) -> dict[str, Any]:
    """The settings that must be the same at all members, with the values that the server stores beside its
    model."""
    shared = {f"{section}.{key}" for section, key in shared_keys(PofmklSettings)}
    return _as_the_server_has(settings, _FEDERATION | shared - changeable_keys(settings, SERVER))


def pace_settings(settings: PofmklSettings) -> dict[str, Any]:
    """The settings that server and clients need alike but that may change while a model lives."""
    return _as_the_server_has(settings, _SHARED_PACE)


def _as_the_server_has(settings: PofmklSettings, keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in server_state_settings(settings).values.items() if key in keys}


def _effective(settings: PofmklSettings, sections: tuple[str, ...]) -> dict[str, Any]:
    """The settings, completed where a default follows from another setting."""
    content = by_key(settings, sections)
    kernels: dict[str, Any] = {"views": None, "families": None, "smoothness": None}
    if settings.learning.preset == "paper":
        dictionary = settings.kernels.dictionary()
        kernels["families"] = list(dict.fromkeys(kernel.family for kernel in dictionary))
        kernels["bandwidths"] = list(dict.fromkeys(kernel.bandwidth for kernel in dictionary))
        kernels["smoothness"] = next(
            (kernel.smoothness for kernel in dictionary if kernel.smoothness is not None), None
        )
    else:
        kernels["views"], kernels["bandwidths"] = list(settings.views), list(settings.bandwidths)
    return content | {f"kernels.{key}": value for key, value in kernels.items()}
