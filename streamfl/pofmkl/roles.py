"""The roles of POF-MKL, as ``[role] kind`` names them."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import numpy as np

from streamfl.kernels import FeatureMap, frequencies, loss_named
from streamfl.pofmkl.client import PaperLearner
from streamfl.pofmkl.client_role import Pace, PofmklClient, Uplink
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.messages import UPDATE, Update, decode_model, fingerprint
from streamfl.pofmkl.server import PofmklServer
from streamfl.pofmkl.server_steps import AveragedStep
from streamfl.role import Channels, ConfigurationError, Input, Record, TopicSpec
from streamfl.role_kind import RoleKind
from streamfl.samples import SampleReader, SamplesSection
from streamfl.wire import MAXIMUM_BYTES

__all__ = ["ROLES", "feature_map"]

log = logging.getLogger(__name__)

# The compacted model topic keeps superseded parameters for a while, so that a reader that is behind still sees whole versions.
_MODEL_OPTIONS = {"min.compaction.lag.ms": "60000"}
# Without small segments the part that is never compacted, the active one, would be up to 1 GiB to read at every start.
_SMALL_SEGMENTS = {"segment.bytes": "67108864"}
# A round's timeout is measured on one clock, the broker's.
_UPDATE_OPTIONS = {"message.timestamp.type": "LogAppendTime"}


def feature_map(settings: PofmklSettings, dimension: int) -> FeatureMap:
    """The random features that every client of the federation draws."""
    learning, kernels = settings.learning, settings.kernels.dictionary()
    drawn = frequencies(
        kernels,
        learning.features_per_kernel,
        dimension,
        settings.federation.seed,
        dtype=_dtype(settings),
        shared_directions=learning.shared_directions,
    )
    return FeatureMap(drawn, shared_by=kernels if learning.shared_directions else None)


def _dtype(settings: PofmklSettings) -> Any:
    return np.float64 if settings.learning.precision == "float64" else np.float32


def _fingerprint(settings: PofmklSettings) -> int:
    learning = settings.learning
    return fingerprint(
        settings.federation.name,
        settings.federation.seed,
        learning.loss,
        settings.kernels.dictionary(),
        learning.features_per_kernel,
        np.dtype(_dtype(settings)),
        learning.shared_directions,
    )


def _samples(settings: PofmklSettings) -> SamplesSection:
    if settings.samples is None:
        raise ConfigurationError(
            "the section [samples] is missing: a pofmkl-client has to know the topic and fields of its samples"
        )
    return settings.samples


def _build_client(settings: PofmklSettings) -> PofmklClient:
    reader = SampleReader(_samples(settings))
    learning = settings.learning
    _check_sizes(settings)
    lockstep = learning.staleness == "lockstep"
    return PofmklClient(
        learner=PaperLearner(
            features=feature_map(settings, reader.dimension),
            learning_rate=learning.rate,
            regularisation=learning.regularisation,
            loss=loss_named(learning.loss),
        ),
        pace=Pace(lockstep, 1 if lockstep else learning.max_staleness, learning.upload_interval_ms / 1000),
        uplink=Uplink(settings.uplink.kernels_per_upload, settings.uplink.budget_bytes_per_second, learning.exploration),
        seed=settings.federation.seed,
        clients=settings.federation.clients,
        shards=settings.federation.shards,
        fingerprint=_fingerprint(settings),
        encode_prediction=msgspec.json.Encoder().encode,
        original=reader.original,
    )


def _check_sizes(settings: PofmklSettings) -> None:
    kernels, features = len(settings.kernels.dictionary()), settings.learning.features_per_kernel
    most = settings.uplink.kernels_per_upload or kernels
    # An upload is gathered, and remembered, in double precision.
    gathered = most * 2 * features * 8
    if gathered > 0.9 * MAXIMUM_BYTES:
        raise ConfigurationError(
            f"an upload of {most} kernels with learning.features_per_kernel = {features} takes {gathered} bytes to remember, "
            f"more than a record may hold: set uplink.kernels_per_upload to at most {int(0.9 * MAXIMUM_BYTES) // (16 * features)}, "
            "or lower features_per_kernel"
        )
    if settings.federation.clients < 3 and most < kernels:
        log.warning(
            "federation.clients = %d with %d of %d kernels an upload: the paper's step, divided by the probability of the "
            "kernels sent, is unstable in so small a federation; send all kernels or lower learning.learning_rate",
            settings.federation.clients,
            most,
            kernels,
        )


def _build_server(settings: PofmklSettings) -> PofmklServer:
    learning = settings.learning
    return PofmklServer(
        clients=settings.federation.clients,
        kernels=len(settings.kernels.dictionary()),
        features=learning.features_per_kernel,
        step=lambda kernels: AveragedStep(settings.federation.clients),
        shards=settings.federation.shards,
        lockstep=learning.staleness == "lockstep",
        round_timeout=learning.round_timeout_seconds,
        fingerprint=_fingerprint(settings),
        dtype=_dtype(settings),
    )


def _decode_update(record: Record) -> Update:
    return UPDATE.decode(record.value)


def _client_channels(settings: PofmklSettings, role: Any) -> Channels:
    name = settings.federation.name
    return Channels(
        inputs={"samples": Input(_samples(settings).topic, SampleReader(_samples(settings)).decode)},
        tables={"model": Input(f"{name}.model", lambda record: decode_model(record.key, record.value))},
        outputs={"predictions": f"{name}.predictions", "updates": f"{name}.updates"},
        changelogs={"state": f"{name}.pofmkl-client.state"},
    )


def _server_channels(settings: PofmklSettings, role: Any) -> Channels:
    name = settings.federation.name
    return Channels(
        inputs={"updates": Input(f"{name}.updates", _decode_update)},
        outputs={},
        changelogs={"state": f"{name}.pofmkl-server.state", "model": f"{name}.model"},
    )


def _shared_topics(settings: PofmklSettings) -> list[TopicSpec]:
    name, shards = settings.federation.name, settings.federation.shards
    return [
        TopicSpec(f"{name}.updates", shards, compacted=False, options=_UPDATE_OPTIONS),
        TopicSpec(f"{name}.model", shards, compacted=True, options=_MODEL_OPTIONS, preferred=_SMALL_SEGMENTS),
        TopicSpec(f"{name}.dead-letters", None, compacted=False),
    ]


def _client_topics(settings: PofmklSettings) -> list[TopicSpec]:
    name = settings.federation.name
    return [
        TopicSpec(_samples(settings).topic, None, compacted=False, users=True),
        TopicSpec(f"{name}.predictions", None, compacted=False),
        TopicSpec(f"{name}.pofmkl-client.state", None, compacted=True, preferred=_SMALL_SEGMENTS),
        *_shared_topics(settings),
    ]


def _server_topics(settings: PofmklSettings) -> list[TopicSpec]:
    name = settings.federation.name
    state = TopicSpec(f"{name}.pofmkl-server.state", settings.federation.shards, compacted=True, preferred=_SMALL_SEGMENTS)
    return [state, *_shared_topics(settings)]


def _client_partitions(settings: PofmklSettings) -> dict[str, str]:
    return {f"{settings.federation.name}.pofmkl-client.state": _samples(settings).topic}


ROLES: dict[str, RoleKind[Any]] = {
    kind.name: kind
    for kind in (
        RoleKind("pofmkl-client", PofmklSettings, _build_client, _client_channels, _client_topics, _client_partitions),
        RoleKind("pofmkl-server", PofmklSettings, _build_server, _server_channels, _server_topics),
    )
}
