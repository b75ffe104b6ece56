"""The roles of POF-MKL, as ``[role] kind`` names them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from streamfl.join import LabelJoin
from streamfl.kernels import FeatureMap, frequencies, loss_named
from streamfl.pofmkl.client import PaperLearner
from streamfl.pofmkl.client_role import Pace, PofmklClient, Uplink
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.learner import Learner
from streamfl.pofmkl.live_challengers import LiveChallengers
from streamfl.pofmkl.messages import UPDATE, Update, decode_model
from streamfl.pofmkl.practical import PracticalLearner
from streamfl.pofmkl.server import PofmklServer
from streamfl.pofmkl.server_steps import AdaGrad, AveragedStep, RecursiveLeastSquares, ServerStep, StochasticGradient
from streamfl.pofmkl.views import ViewedFeatures
from streamfl.role import Channels, ConfigurationError, Input, Record, TopicSpec
from streamfl.role_kind import RoleKind
from streamfl.samples import LabelReader, SampleReader, SamplesSection
from streamfl.wire import MAXIMUM_BYTES, fingerprint

__all__ = ["ROLES", "feature_map", "learner", "server_step"]

log = logging.getLogger(__name__)

# The compacted model topic keeps superseded parameters for a while, so that a reader that is behind still sees whole versions.
_MODEL_OPTIONS = {"min.compaction.lag.ms": "60000"}
# Without small segments the part that is never compacted, the active one, would be up to 1 GiB to read at every start.
_SMALL_SEGMENTS = {"segment.bytes": "67108864"}
# A round's timeout is measured on one clock, the broker's.
_UPDATE_OPTIONS = {"message.timestamp.type": "LogAppendTime"}


def feature_map(settings: PofmklSettings, dimension: int) -> FeatureMap:
    """The random features that every client of a federation with preset = "paper" draws."""
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


def _fingerprint(settings: PofmklSettings, named: bool = True) -> int:
    """named: with the samples' features, if they are given; federations that began without are known by the other."""
    features = settings.federation.features
    learning = settings.learning
    kernels: object
    if learning.preset == "paper":
        # As tuples: what a class calls its fields must not tell federations apart.
        dictionary = settings.kernels.dictionary()
        kernels = [(kernel.family, kernel.bandwidth, kernel.smoothness) for kernel in dictionary], learning.shared_directions
    else:
        kernels = settings.views, settings.bandwidths
    return fingerprint(
        settings.federation.name,
        settings.federation.seed,
        learning.preset,
        learning.loss,
        kernels,
        learning.features_per_kernel,
        np.dtype(_dtype(settings)).name,
        *([] if features is None or not named else [tuple(features) if isinstance(features, list) else features]),
    )


def _samples(settings: PofmklSettings) -> SamplesSection:
    if settings.samples is None:
        raise ConfigurationError(
            "the section [samples] is missing: a pofmkl-client has to know the topic and fields of its samples"
        )
    return settings.samples


def learner(settings: PofmklSettings, dimension: int) -> Learner:
    """The mathematics of a client, by the preset."""
    learning = settings.learning
    if learning.preset == "paper":
        return PaperLearner(
            features=feature_map(settings, dimension),
            learning_rate=learning.rate,
            regularisation=learning.regularisation,
            loss=loss_named(learning.loss),
        )
    return PracticalLearner(
        features=ViewedFeatures(
            settings.views,
            settings.bandwidths,
            learning.features_per_kernel,
            dimension,
            settings.federation.seed,
            _dtype(settings),
        ),
        loss=loss_named(learning.loss),
        seed=settings.federation.seed,
        experts=settings.experts.local,
        river=settings.experts.river,
        mixtures=settings.experts.mixtures,
        detector=settings.drift.detector,
    )


def server_step(settings: PofmklSettings) -> Callable[[int], ServerStep]:
    """The step of a shard of so many kernels, by the preset."""
    learning, row_length = settings.learning, 2 * settings.learning.features_per_kernel
    if learning.preset == "paper":
        return lambda kernels: AveragedStep(settings.federation.clients)
    if learning.server_step == "gradient":
        return lambda kernels: StochasticGradient(learning.rate)
    if learning.server_step == "adagrad":
        return lambda kernels: AdaGrad(kernels, row_length, learning.rate)
    return lambda kernels: RecursiveLeastSquares(kernels, row_length, dtype=_dtype(settings))


def _build_client(settings: PofmklSettings) -> PofmklClient:
    reader = SampleReader(_samples(settings))
    learning = settings.learning
    _check_sizes(settings)
    lockstep = learning.staleness == "lockstep"
    return PofmklClient(
        learner=learner(settings, reader.dimension),
        pace=Pace(lockstep, 1 if lockstep else learning.max_staleness, learning.upload_interval_ms / 1000),
        uplink=Uplink(settings.kernels_per_upload, settings.uplink.budget_bytes_per_second, learning.exploration_rate),
        seed=settings.federation.seed,
        clients=settings.federation.clients,
        client_expiry=settings.federation.client_expiry_seconds,
        shards=settings.federation.shards,
        fingerprint=_fingerprint(settings),
        encode_prediction=msgspec.json.Encoder().encode,
        original=reader.original,
        challengers=LiveChallengers(settings.challengers.models, learning.loss) if settings.challengers.models else None,
        join=_join(settings),
    )


def _join(settings: PofmklSettings) -> LabelJoin | None:
    labels = settings.labels
    return None if labels is None else LabelJoin(labels.expiry_seconds, labels.limit, settings.federation.clients)


def _check_sizes(settings: PofmklSettings) -> None:
    kernels, features = settings.kernel_count, settings.learning.features_per_kernel
    most = settings.kernels_per_upload or kernels
    # An upload is gathered, and remembered, in double precision.
    gathered = most * 2 * features * 8
    if gathered > 0.9 * MAXIMUM_BYTES:
        raise ConfigurationError(
            f"an upload of {most} kernels with learning.features_per_kernel = {features} takes {gathered} bytes to remember, "
            f"more than a record may hold: set uplink.kernels_per_upload to at most {int(0.9 * MAXIMUM_BYTES) // (16 * features)}, "
            "or lower features_per_kernel"
        )
    if settings.learning.preset == "paper" and settings.federation.clients < 3 and most < kernels:
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
        kernels=settings.kernel_count,
        features=learning.features_per_kernel,
        dimension=settings.federation.dimension,
        step=server_step(settings),
        shards=settings.federation.shards,
        lockstep=learning.staleness == "lockstep",
        round_timeout=learning.round_timeout_seconds,
        client_expiry=settings.federation.client_expiry_seconds,
        fingerprint=_fingerprint(settings),
        former_fingerprint=_fingerprint(settings, named=False),
        dtype=_dtype(settings),
    )


def _decode_update(record: Record) -> Update:
    return UPDATE.decode(record.value)


def _client_channels(settings: PofmklSettings) -> Channels:
    name, samples = settings.federation.name, _samples(settings)
    inputs = {"samples": Input(samples.topic, SampleReader(samples).decode)}
    if settings.labels is not None:
        inputs["labels"] = Input(settings.labels.topic, LabelReader(settings.labels, samples.label_range).decode)
    return Channels(
        inputs=inputs,
        tables={"model": Input(f"{name}.model", lambda record: decode_model(record.key, record.value))},
        outputs={"predictions": f"{name}.predictions", "updates": f"{name}.updates"},
        changelogs={"state": f"{name}.pofmkl-client.state"},
    )


def _server_channels(settings: PofmklSettings) -> Channels:
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
    users = [_samples(settings).topic, *([] if settings.labels is None else [settings.labels.topic])]
    return [
        *(TopicSpec(topic, None, compacted=False, users=True) for topic in users),
        TopicSpec(f"{name}.predictions", None, compacted=False),
        TopicSpec(f"{name}.pofmkl-client.state", None, compacted=True, preferred=_SMALL_SEGMENTS),
        *_shared_topics(settings),
    ]


def _server_topics(settings: PofmklSettings) -> list[TopicSpec]:
    name = settings.federation.name
    state = TopicSpec(f"{name}.pofmkl-server.state", settings.federation.shards, compacted=True, preferred=_SMALL_SEGMENTS)
    return [state, *_shared_topics(settings)]


def _client_partitions(settings: PofmklSettings) -> dict[str, str]:
    topic = _samples(settings).topic
    like = {f"{settings.federation.name}.pofmkl-client.state": topic}
    return like if settings.labels is None else like | {settings.labels.topic: topic}


ROLES: dict[str, RoleKind[Any]] = {
    kind.name: kind
    for kind in (
        RoleKind("pofmkl-client", PofmklSettings, _build_client, _client_channels, _client_topics, _client_partitions),
        RoleKind("pofmkl-server", PofmklSettings, _build_server, _server_channels, _server_topics),
    )
}
