"""Which settings the state of POF-MKL's roles is made with, and which of them may change.

What is not named here as free to change must stay, a new key included.
"""

from __future__ import annotations

from typing import Any

from streamfl.pofmkl.config import PofmklSettings
from streamfl.state_settings import StateSettings, by_key

__all__ = ["client_state_settings", "federation_settings", "pace_settings", "server_state_settings"]

# How often, how much and how fast is learnt and sent from now on. What was learnt so far stays what it is: the parameters are sums
# of steps, whatever their size. K scales the steps to come. Rounds and updates are both counted up, so the model's version goes on
# under another staleness.
_PACE = {
    "federation.clients",
    "federation.client_expiry_seconds",
    # Who may speak for whom is looked at with each message.
    "federation.members",
    # A federation may get them later. A client's own samples.features must stay, and what was learnt so far has a fingerprint.
    "federation.features",
    "learning.staleness",
    "learning.max_staleness",
    "learning.catch_up_samples",
    "learning.catch_up_patience_seconds",
    "learning.learning_rate",
    "learning.horizon",
    "learning.regularisation",
    "learning.exploration",
    "learning.round_timeout_seconds",
    "learning.upload_interval_ms",
    "uplink.budget_bytes_per_second",
    # One or two of them have bandwidths of their own, and those must stay.
    "uplink.kernels_per_upload",
}
# A client's own. How bytes are read does not matter once they are numbers. What the server does of an update is not in its state.
_CLIENTS_OWN = {
    "samples.format",
    "labels.format",
    "labels.expiry_seconds",
    "labels.limit",
    "learning.server_step",
}
# What has to be the same at all members: their fingerprint is made of it.
_FEDERATION = {
    "federation.name",
    "federation.seed",
    "federation.shards",
    "federation.features",
    "learning.preset",
    "learning.loss",
    "learning.precision",
    "learning.features_per_kernel",
    "learning.shared_directions",
    "kernels.views",
    "kernels.families",
    "kernels.bandwidths",
    "kernels.smoothness",
}

# What server and clients need alike though it may change: K, and whether there are rounds.
_SHARED_PACE = {"federation.clients", "learning.staleness"}


def client_state_settings(settings: PofmklSettings) -> StateSettings:
    """Of a client.

    The default learner cannot take over another label_range or input_norm either: it finds its scales by running moments, and
    these, the samples that it keeps and the forecasts that wait for their label are all in the old unit. Another topic, client
    field or label is another stream: the positions, the names and the target that are remembered are not of it.
    """
    content = _effective(settings, ("federation", "samples", "labels", "learning", "kernels", "experts", "drift", "uplink"))
    free = _PACE | _CLIENTS_OWN
    if settings.samples is not None:
        # Named one by one or not, it is their number.
        content["samples.dimension"] = settings.samples.width
        if settings.samples.label is None:
            # Nothing was learnt without it, so that any may come.
            del content["samples.label"]
    if settings.labels is None:
        # A sample's name is only shown, but where its label has to find it.
        free = free | {"samples.sample_id"}
    for name in settings.experts.river:
        # What an expert knows is of how it was made. How much it may remember is free to change.
        if (model := settings.models.get(name)) is not None:
            content |= {f"models.{name}.make": model.make, f"models.{name}.parameters": model.parameters}
    # A client with labels on their own topic remembers otherwise than one whose samples have them.
    content["labels.topic"] = None if settings.labels is None else settings.labels.topic
    return StateSettings.of(content, free)


def server_state_settings(settings: PofmklSettings) -> StateSettings:
    """Of the server: its parameters, and what its kind of step keeps beside them."""
    return StateSettings.of(_effective(settings, ("federation", "learning", "kernels", "uplink")), _PACE)


def federation_settings(settings: PofmklSettings) -> dict[str, Any]:
    """What all members need alike, as the server's model is remembered with."""
    return _as_the_server_has(settings, _FEDERATION)


def pace_settings(settings: PofmklSettings) -> dict[str, Any]:
    """What server and clients need alike besides, and what may change under a model."""
    return _as_the_server_has(settings, _SHARED_PACE)


def _as_the_server_has(settings: PofmklSettings, keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in server_state_settings(settings).values.items() if key in keys}


def _effective(settings: PofmklSettings, sections: tuple[str, ...]) -> dict[str, Any]:
    """The settings with what stands for those that were left out, where a default follows from another setting."""
    content = by_key(settings, sections)
    kernels: dict[str, Any] = {"views": None, "families": None, "smoothness": None}
    if settings.learning.preset == "paper":
        dictionary = settings.kernels.dictionary()
        kernels["families"] = list(dict.fromkeys(kernel.family for kernel in dictionary))
        kernels["bandwidths"] = list(dict.fromkeys(kernel.bandwidth for kernel in dictionary))
        kernels["smoothness"] = next((kernel.smoothness for kernel in dictionary if kernel.smoothness is not None), None)
    else:
        kernels["views"], kernels["bandwidths"] = list(settings.views), list(settings.bandwidths)
    return content | {f"kernels.{key}": value for key, value in kernels.items()}
