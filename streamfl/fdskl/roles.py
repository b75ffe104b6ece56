"""The role of FDSKL, as ``[role] kind`` names it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np
from scipy.special import expit

from streamfl.configuration.secrets import read_secret
from streamfl.contract.channel_table import USER, Channel, ChannelTable
from streamfl.contract.role import ConfigurationError, PeerError, Record
from streamfl.encoding.wire import Codec, fingerprint
from streamfl.fdskl.config import WORKER, FdsklSettings
from streamfl.fdskl.learning.iteration import LearningSettings
from streamfl.fdskl.learning.losses import loss_named
from streamfl.fdskl.messages import INCARNATION, PARTIAL_SUM, REVISION, ROUND, Prediction
from streamfl.fdskl.metrics import ActiveMetrics, PartyMetrics
from streamfl.fdskl.state import STATE
from streamfl.fdskl.sums.contributions import InputNoise, KernelSettings
from streamfl.fdskl.sums.pending_sums import STAGES
from streamfl.fdskl.sums.sums import OFF, SUM
from streamfl.fdskl.sums.topology import Aggregation, aggregation
from streamfl.fdskl.worker.active_settings import ActiveSettings
from streamfl.fdskl.worker.role import FdsklWorker
from streamfl.fdskl.worker.settings import WorkerSettings
from streamfl.fdskl.worker.turn_signing import decode_signed, signer
from streamfl.identity import load_identity
from streamfl.records.entities import EntitySamplesSection
from streamfl.records.header_propagation import carried, carried_nothing, timed
from streamfl.records.labels import LabelReader
from streamfl.records.predictions import prediction_encoder
from streamfl.records.samples import SampleReader
from streamfl.roles.role_kind import RoleKind
from streamfl.state.changeable import changeable_keys
from streamfl.state.state_settings import StateSettings, by_key

__all__ = ["ROLES"]

# The scale of all columns is remembered as one record, with 80 bytes a column.
MOST_COLUMNS = 12_000
_CAUTION = {
    "paper": "with aggregation.mask = \"paper\" readers learn differences of a party's columns: grant Read to nobody but the party",
    "none": "with aggregation.mask = \"none\" readers learn a party's phases: grant Read to nobody but the party",
}


def _fingerprint(settings: FdsklSettings) -> int:
    federation, learning, aggregated = settings.federation, settings.learning, settings.aggregation
    return fingerprint(
        "fdskl",
        federation.name,
        federation.seed,
        tuple(federation.parties),
        federation.active_party if len(federation.actives) == 1 else tuple(federation.active_parties),
        learning.kernel,
        learning.matern_nu,
        learning.columns_share,
        aggregated.topology,
        aggregated.mask,
        aggregated.frequencies,
        aggregated.circle_bits,
    )


def trees_of(settings: FdsklSettings) -> dict[int, Aggregation]:
    """The topology of each stage of a round, by stage."""
    count, root, kind = len(settings.federation.parties), settings.federation.root, settings.aggregation.topology
    actives = settings.federation.actives
    trees = {STAGES * place + SUM: aggregation(kind, count, active) for place, active in enumerate(actives)}
    if settings.aggregation.mask == "paper":
        others = [party for party in range(count) if party != root]
        trees |= {OFF + owner: aggregation(kind, count, root, without=owner, second=True) for owner in others}
    return trees


def _column_names(samples: EntitySamplesSection, dimension: int, party: str) -> tuple[str, ...]:
    """Frequencies are drawn by column name. Columns without names are named by party, field and number."""
    if samples.input_names is not None:
        return tuple(samples.input_names)
    return tuple(f"{party}/{samples.features}/{number}" for number in range(dimension))


def _build(settings: FdsklSettings) -> FdsklWorker:
    federation, aggregated, alignment = settings.federation, settings.aggregation, settings.alignment
    name, samples = settings.required_party(), settings.required_samples(f"a {WORKER}")
    dimension = SampleReader(samples.samples).dimension
    if dimension > MOST_COLUMNS:
        raise ConfigurationError(
            f"samples.features: {dimension:,} columns: their common state is one record, so at most {MOST_COLUMNS:,} are expected"
        )
    given = None if aggregated.secret_file is None else read_secret(aggregated.secret_file, "aggregation.secret_file")
    worker = WorkerSettings(
        federation=federation.name,
        parties=tuple(federation.parties),
        own=federation.parties.index(name),
        actives=tuple(federation.actives),
        fingerprint=_fingerprint(settings),
        seed=federation.seed,
        columns=_column_names(samples, dimension, name),
        distances=settings.learning.bandwidth is None,
        kernel=KernelSettings(settings.learning.kernel, settings.learning.matern_nu, settings.learning.columns_share),
        secret=os.urandom(32) if given is None else _derived(given, settings),
        secret_is_given=given is not None,
        shared=aggregated.frequencies == "shared",
        mask=aggregated.mask,
        is_open=settings.is_open,
        bits=aggregated.circle_bits,
        trees=trees_of(settings),
        round_seconds=aggregated.round_seconds,
        rounds_in_flight=aggregated.rounds_in_flight,
        reply_seconds=alignment.reply_seconds,
        expiry=alignment.expiry_seconds,
        limit=alignment.limit,
        features_limit=settings.learning.features_limit,
        standardise=settings.standardisation.columns,
        first_entities=settings.standardisation.first_entities,
        auto=settings.standardisation.transform == "auto",
        noise=_noise(settings, given),
        # The only active party answers nobody but itself.
        features_per_entity=None if settings.is_open or federation.active_parties == [name] else settings.features_per_entity,
        entropy=lambda: os.urandom(32),
        carry=carried(settings.predictions) if name == federation.active_party else carried_nothing,
    )
    return FdsklWorker(worker, _active(settings) if settings.is_active else None, alignment.patience_seconds, WORKER)


def _derived(secret: bytes, settings: FdsklSettings) -> bytes:
    """The key of the frequencies, derived from the secret and the federation, so that two federations have nothing in common."""
    content = msgspec.msgpack.encode((secret, _fingerprint(settings), settings.own_party))
    return hashlib.blake2b(content, digest_size=32, person=b"frequencies").digest()


def _noise(settings: FdsklSettings, secret: bytes | None) -> InputNoise | None:
    privacy = settings.privacy
    if privacy.input_norm is None or privacy.input_noise is None or secret is None:
        return None
    content = hashlib.blake2b(secret, digest_size=32, person=b"input noise").hexdigest()
    return InputNoise(privacy.input_norm, privacy.input_noise, content)


def _active(settings: FdsklSettings) -> ActiveSettings:
    learning, log = settings.learning, _log(settings)
    loss = loss_named(learning.loss, learning.positive_weight)
    low, high = settings.required_labels("the active party").label_range
    return ActiveSettings(
        learning=LearningSettings(
            loss=loss,
            solver=learning.solver,
            bandwidth=learning.bandwidth,
            multiplier=learning.bandwidth_multiplier,
            laplacian=learning.kernel == "laplacian",
            features_limit=learning.features_limit,
            block_features=learning.block_features,
            block_instances=learning.block_instances,
            first_block=learning.first_block,
            window=learning.window,
            visits=learning.visits,
            sweeps=learning.sweeps,
            cache_bytes=learning.cache_bytes,
            regularisation=learning.regularisation,
            step=learning.step,
            step_rule=learning.step_rule,
            horizon=learning.horizon,
            bits=settings.aggregation.circle_bits,
        ),
        encode=prediction_encoder(settings.predictions, f"{settings.federation.name}.predictions", Prediction),
        prediction_of=prediction_of(learning.loss, low, high),
        label_of=_sign if loss.classifies else float,
        linger=settings.alignment.linger_ms / 1000,
        revise=settings.alignment.revise,
        catch_up_samples=learning.catch_up_samples,
        catch_up_patience=learning.catch_up_patience_seconds,
        fingerprint=fingerprint(
            _fingerprint(settings),
            learning.loss,
            learning.positive_weight,
            (low, high) if learning.loss == "square" else (),
            learning.block_features,
        ),
        sign=signer(None if log is None else load_identity(settings), log or ""),
    )


def prediction_of(loss: str, low: float, high: float) -> Callable[[float], float]:
    """Maps f to what is published: the probability of label 1; smooth hinge: f from -1 to 1 as 0 to 1; or the label's unit."""
    if loss == "logistic":
        return lambda output: float(expit(output))
    if loss == "smooth-hinge":
        return lambda output: float((np.clip(output, -1.0, 1.0) + 1.0) / 2.0)
    return lambda output: low + output * (high - low)


def _sign(label: float) -> float:
    """Labels 0 and 1 as -1 and 1."""
    if label not in (0.0, 1.0):
        raise PeerError("label", f"the label is {label:g}, 0 or 1 is expected")
    return 2.0 * label - 1.0


def _table(settings: FdsklSettings) -> ChannelTable:
    """The channels of FDSKL. A topic between parties belongs to its reader: FEDERATION.READER.NAME."""
    own, samples = settings.required_party(), settings.required_samples(f"a {WORKER}")
    federation, parties, actives = settings.federation.name, settings.federation.parties, settings.federation.active_parties
    predicts = settings.federation.active_party
    pairs = [(writer, reader) for writer in parties for reader in parties if writer != reader]
    trees = trees_of(settings).values()
    sums = {(parties[child], parties[parent]) for tree in trees for child, parent in enumerate(tree.parent) if parent is not None}

    def between(name: str, codec: Codec[Any], links: Iterable[tuple[str, str]]) -> Channel:
        return Channel(
            name=name,
            links={(writer, reader): f"{federation}.{reader}.{name}" for writer, reader in links},
            decode=lambda record: codec.decode(record.value),
            to_each=True,
            claimed_sender=lambda message: message.sender,
            makes_room=True,
            like="samples",
            caution=_CAUTION.get(settings.aggregation.mask, ""),
        )

    rows = [
        Channel(name="samples", links={(USER, own): samples.topic}, decode=SampleReader(samples.samples).decode),
        *([_labels(settings)] if settings.is_active else []),
        between("incarnations", INCARNATION, pairs),
        between("rounds", ROUND, [(writer, reader) for writer, reader in pairs if writer in actives]),
        between("sums", PARTIAL_SUM, sorted(sums)),
        between("revisions", REVISION, [(writer, reader) for writer, reader in pairs if reader == predicts]),
        Channel(
            name="predictions",
            links={(predicts, USER): f"{federation}.predictions"},
            time_of=timed(settings.predictions),
        ),
        Channel(name="state", links={(own, own): f"{settings.member}.state"}, state=True, like="samples"),
    ]
    if log := _log(settings):
        # The topic that orders the iterations of several active parties.
        turns = Channel(
            name="turns",
            links={(writer, reader): log for writer in actives for reader in actives},
            decode=decode_signed(load_identity(settings)),
            signed_within=True,
            makes_room=True,
            like="samples",
            caution=_CAUTION.get(settings.aggregation.mask, ""),
        )
        rows.append(turns)
    return ChannelTable(own, rows, dict.fromkeys(parties, WORKER))


def _labels(settings: FdsklSettings) -> Channel:
    labels, square = settings.required_labels("the active party"), settings.learning.loss == "square"
    read = LabelReader(labels, labels.label_range if square else None, "labels.label_range").decode
    own = settings.required_party()
    return Channel(name="labels", links={(USER, own): labels.topic}, decode=read if square else _checked(read), like="samples")


def _checked(decode: Callable[[Record], Any]) -> Callable[[Record], Any]:
    """Refuses a class label that is neither 0 nor 1 when it is decoded, before it waits for its sample."""

    def checked(record: Record) -> Any:
        label = decode(record)
        _sign(label.label)
        return label

    return checked


def _log(settings: FdsklSettings) -> str | None:
    """The topic that orders the iterations of several active parties; None for a party that does not read it."""
    shared = settings.is_active and len(settings.federation.actives) > 1
    return f"{settings.federation.name}.turns" if shared else None


def _state_settings(settings: FdsklSettings) -> StateSettings:
    """Settings that a party's state was made with: of its columns, its features, and what the active party has learnt."""
    content = by_key(
        settings,
        ("federation", "party", "samples", "labels", "learning", "aggregation", "alignment", "standardisation", "privacy"),
    )
    if not settings.is_active:
        # Only the active party uses these keys. Another party's file may have them.
        content = {key: value for key, value in content.items() if key not in ("learning.loss", "learning.block_features")}
    return StateSettings.of(content, changeable_keys(FdsklSettings, WORKER))


def _begins_anew(settings: FdsklSettings) -> bool:
    """Whether this party alone knows the model. Any other would forget the secret that the model's features are drawn from."""
    return settings.federation.active_parties == [settings.own_party]


ROLES: dict[str, RoleKind[Any]] = {
    WORKER: RoleKind(
        name=WORKER,
        settings=FdsklSettings,
        build=_build,
        table=_table,
        state_settings=_state_settings,
        begins_anew=_begins_anew,
        state=STATE,
        metrics=(PartyMetrics, ActiveMetrics),
    )
}
