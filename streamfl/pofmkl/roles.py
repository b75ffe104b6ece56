"""The roles of POF-MKL, as ``[role] kind`` names them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from operator import attrgetter

from streamfl.contract.channel_table import USER, Channel, ChannelTable
from streamfl.contract.role import ConfigurationError
from streamfl.encoding.wire import LONGEST_KEY, ROOM, fingerprint
from streamfl.identity import SEAL_BYTES, load_identity
from streamfl.kernels import FeatureMap, frequencies, loss_named
from streamfl.pofmkl.client.given import ClientGiven
from streamfl.pofmkl.client.live_challengers import LiveChallengers
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.kinds import CLIENT, SERVER
from streamfl.pofmkl.learning.default_learner import DefaultLearner
from streamfl.pofmkl.learning.gradient_steps import AdaGradStep, StochasticGradientStep
from streamfl.pofmkl.learning.learner import Learner
from streamfl.pofmkl.learning.paper_learner import PaperLearner
from streamfl.pofmkl.learning.recursive_least_squares import RecursiveLeastSquares
from streamfl.pofmkl.learning.server_steps import AveragedStep, ServerStep
from streamfl.pofmkl.learning.views import ViewedFeatures
from streamfl.pofmkl.messages import UPDATE, Prediction, decode_model_record
from streamfl.pofmkl.metrics import CLIENT_METRICS, ServerMetrics
from streamfl.pofmkl.model_settings import models_named
from streamfl.pofmkl.server.given import ServerGiven
from streamfl.pofmkl.server.role import PofmklServer
from streamfl.pofmkl.signed_model import ModelSigning
from streamfl.pofmkl.state import CLIENT_STATE, SERVER_STATE
from streamfl.pofmkl.state_settings import client_state_settings, server_state_settings
from streamfl.records.header_propagation import carried, predictions_channel
from streamfl.records.imputation import RunningMeans
from streamfl.records.labels import LabelReader
from streamfl.records.predictions import prediction_encoder
from streamfl.records.samples import SampleReader, SamplesSection
from streamfl.roles.role_kind import RoleKind, by_name

__all__ = ["ROLES", "feature_map", "learner", "server_step"]

log = logging.getLogger(__name__)

# An honest update must never be shortened. The bound has to hold for any number of samples that a client adds
# up, any move of the model since, and any rate and exploration at the client.
MOST_TIMES = 1000
# Of the preset default. A record holds the weights of some hundred.
MOST_KERNELS = 10_000

# The model topic is compacted. Superseded parameters stay for a while, so that a reader that lags still sees
# whole versions.
_MODEL_OPTIONS = {"min.compaction.lag.ms": "60000"}
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
        dtype=learning.dtype,
        shared_directions=learning.shared_directions,
    )
    return FeatureMap(drawn, shared_by=kernels if learning.shared_directions else None)


def _fingerprint(settings: PofmklSettings, named: bool = True) -> int:
    """named: include federation.features, if set. A federation that began without them is recognised
    without."""
    features, learning = settings.federation.features, settings.learning
    kernels: object
    if learning.preset == "paper":
        # As tuples: the names of a class's fields must not enter the fingerprint.
        dictionary = settings.kernels.dictionary()
        kernels = (
            [(kernel.family, kernel.bandwidth, kernel.smoothness) for kernel in dictionary],
            learning.shared_directions,
        )
    else:
        kernels = settings.views, settings.bandwidths
    return fingerprint(
        settings.federation.name,
        settings.federation.seed,
        learning.preset,
        learning.loss,
        kernels,
        learning.features_per_kernel,
        learning.precision,
        *(
            []
            if features is None or not named
            else [tuple(features) if isinstance(features, list) else features]
        ),
    )


def _samples(settings: PofmklSettings) -> SamplesSection:
    if settings.samples is None:
        raise ConfigurationError(
            "the section [samples] is missing: a pofmkl-client has to know the topic and fields of its "
            "samples"
        )
    return settings.samples


def learner(
    settings: PofmklSettings, dimension: int, viewed: type[ViewedFeatures] = ViewedFeatures
) -> Learner:
    """The learner of a client, by the preset. viewed: the class of the default preset's features."""
    learning = settings.learning
    if learning.preset == "paper":
        return PaperLearner(
            features=feature_map(settings, dimension),
            learning_rate=learning.rate,
            regularisation=learning.regularisation,
            loss=loss_named(learning.loss),
        )
    if settings.kernel_count > MOST_KERNELS:
        raise ConfigurationError(
            f"kernels.bandwidths and kernels.views give {settings.kernel_count} kernels: name fewer, no "
            "client could remember its weights of them"
        )
    return DefaultLearner(
        features=viewed(
            settings.views,
            settings.bandwidths,
            learning.features_per_kernel,
            dimension,
            settings.federation.seed,
            learning.dtype,
        ),
        loss=loss_named(learning.loss),
        seed=settings.federation.seed,
        experts=settings.experts.local,
        river=models_named(settings.experts.river, settings.models),
        mixtures=settings.experts.mixtures,
        detector=settings.drift.detector,
    )


def server_step(settings: PofmklSettings) -> Callable[[int], ServerStep]:
    """By the preset: a function from a shard's number of kernels to its step."""
    learning = settings.learning
    if learning.preset == "paper":
        return lambda kernels: AveragedStep(
            settings.federation.clients, _longest_step(settings), learning.regularisation
        )
    if learning.server_step == "gradient":
        return lambda kernels: StochasticGradientStep(learning.rate)
    if learning.server_step == "adagrad":
        return lambda kernels: AdaGradStep(kernels, learning.row_length, learning.rate)
    return lambda kernels: RecursiveLeastSquares(kernels, learning.row_length, dtype=learning.dtype)


def _longest_step(settings: PofmklSettings) -> float:
    """Factor of the paper's preset: MOST_TIMES eta / p for the smallest p; infinite without exploration."""
    learning = settings.learning
    if not learning.effective_exploration:
        return math.inf
    # Each client chooses how many kernels it sends: a bin may hold a single kernel.
    return learning.rate * MOST_TIMES * settings.kernel_count / learning.effective_exploration


def _build_client(settings: PofmklSettings) -> PofmklClient:
    reader = SampleReader(_samples(settings), fills_means=True)
    _check_federation(settings)
    made = learner(settings, reader.dimension)
    # The default learner sees inputs relative to their running means. The paper's kernels are shared, so
    # inputs stay as they are.
    means = RunningMeans(reader.means, reader.lasts, relative=settings.learning.preset == "default")
    _check_sizes(settings, made, means)
    given = ClientGiven(
        learner=made,
        fingerprint=_fingerprint(settings),
        encode=prediction_encoder(settings.predictions, settings.predictions_topic, Prediction),
        low=reader.low,
        span=reader.span,
        carry=carried(settings.predictions),
        means=means,
        challengers=_challengers(settings),
        signing=_signing(settings),
        seal_bytes=0 if settings.identity.key_file is None else SEAL_BYTES,
    )
    return PofmklClient(settings, given)


def _challengers(settings: PofmklSettings) -> LiveChallengers | None:
    models = models_named(settings.challengers.models, settings.models)
    low, high = _samples(settings).label_range
    return LiveChallengers(models, settings.learning.loss, high - low) if models else None


def _signing(settings: PofmklSettings) -> ModelSigning | None:
    identity = load_identity(settings)
    if identity is None:
        return None
    topic = f"{settings.federation.name}.model"
    return ModelSigning(identity.federation, topic, identity.sign, partial(identity.check_signature, SERVER))


def _check_sizes(settings: PofmklSettings, made: Learner, means: RunningMeans) -> None:
    """Raises ConfigurationError if a record of the client's state could exceed the largest record."""
    kernels = settings.kernel_count
    features = settings.learning.features_per_kernel
    shards = settings.federation.shards
    most = settings.kernels_per_upload or kernels
    # An upload is gathered and stored in double precision, with its kernels' numbers and twice the versions
    # of all shards.
    kernel_bytes, rest = 16 * features + 9, made.record_bytes + 27 * shards
    _check_fits(
        f"an upload of {most} kernels with learning.features_per_kernel = {features}, and what is known of "
        "its client,",
        most * kernel_bytes + rest,
        f"set uplink.kernels_per_upload to at most {max(1, (ROOM - rest) // kernel_bytes)}, or lower "
        "features_per_kernel",
    )
    _check_fits(
        f"the scales and weights of a client, with inputs of dimension {made.dimension} and {kernels} "
        "kernels,",
        made.part_bytes,
        "name fewer samples.features, kernels.bandwidths, kernels.views or experts.river, or lower a model's "
        "state_bytes",
    )
    # A number takes nine bytes. A sample waits together with its record's key.
    waiting = made.forecast_bytes if settings.labels is not None else 9 * made.dimension + LONGEST_KEY
    _check_fits(
        "the means of a client's inputs",
        means.record_bytes,
        'give fewer samples.inputs missing = "mean" or "last"',
    )
    _check_fits(
        f"a sample that waits, of dimension {made.dimension},", waiting, "name fewer samples.features"
    )


def _check_fits(what: str, needed: int, remedy: str) -> None:
    if needed > ROOM:
        raise ConfigurationError(
            f"{what} takes {needed:,} bytes to remember, more than the {ROOM:,} of a record: {remedy}"
        )


def _check_federation(settings: PofmklSettings) -> None:
    """Logs a warning for settings that are known to be unstable."""
    kernels = settings.kernel_count
    most = settings.kernels_per_upload or kernels
    if settings.learning.preset == "paper" and settings.federation.clients < 3 and most < kernels:
        log.warning(
            "federation.clients = %d with %d of %d kernels an upload: the paper's step, divided by the "
            "probability of the kernels sent, is unstable in so small a federation; send all kernels or "
            "lower learning.learning_rate",
            settings.federation.clients,
            most,
            kernels,
        )


def _check_server_sizes(settings: PofmklSettings) -> None:
    """The same check for the server, which stores its state of a kernel in one record."""
    learning, features = settings.learning, settings.learning.features_per_kernel
    # Parameters and the optimiser's state, in double precision.
    needed, other = 16 * features, "lower it"
    if learning.preset == "default" and learning.server_step == "least-squares":
        needed = RecursiveLeastSquares.snapshot_bytes(learning.row_length, learning.dtype)
        other = 'lower it, or set learning.server_step = "adagrad"'
    _check_fits(
        f"what the server knows of a kernel with learning.features_per_kernel = {features}", needed, other
    )


def _build_server(settings: PofmklSettings) -> PofmklServer:
    _check_server_sizes(settings)
    fingerprints = _fingerprint(settings), _fingerprint(settings, named=False)
    return PofmklServer(
        settings,
        ServerGiven(step=server_step(settings), fingerprints=fingerprints, signing=_signing(settings)),
    )


def _client_table(settings: PofmklSettings) -> ChannelTable:
    samples, labels = _samples(settings), settings.labels
    rows = [SampleReader(samples, fills_means=True).channel(CLIENT)]
    if labels is not None:
        decode = LabelReader(labels, samples.label_range).decode
        links = {(USER, CLIENT): labels.topic}
        rows.append(
            Channel(name="labels", links=links, decode=decode, client=attrgetter("client"), like="samples")
        )
    return ChannelTable(
        CLIENT,
        [
            *rows,
            predictions_channel(settings.predictions, settings.predictions_topic, CLIENT),
            *_shared_channels(settings),
        ],
    )


def _server_table(settings: PofmklSettings) -> ChannelTable:
    return ChannelTable(SERVER, _shared_channels(settings))


def _shared_channels(settings: PofmklSettings) -> list[Channel]:
    name, reason = settings.federation.name, "as federation.shards says"
    one = partial(Channel, partitions=settings.federation.shards, reason=reason, placed=True)
    return [
        one(
            name="updates",
            links={(CLIENT, SERVER): f"{name}.updates"},
            decode=UPDATE.read,
            claimed_sender=attrgetter("client"),
            options=_UPDATE_OPTIONS,
        ),
        one(
            name="model",
            links={(SERVER, CLIENT): f"{name}.model"},
            decode=decode_model_record,
            whole=True,
            published=True,
            signed_within=True,
            options=_MODEL_OPTIONS,
        ),
    ]


ROLES = by_name(
    RoleKind(
        CLIENT,
        PofmklSettings,
        _build_client,
        _client_table,
        client_state_settings,
        begins_anew=True,
        state=CLIENT_STATE,
        metrics=CLIENT_METRICS,
    ),
    RoleKind(
        SERVER,
        PofmklSettings,
        _build_server,
        _server_table,
        server_state_settings,
        begins_anew=True,
        state=SERVER_STATE,
        metrics=(ServerMetrics,),
    ),
)
