"""The role of FDSKL, as ``[role] kind`` names it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
from scipy.special import expit

from streamfl.configuration.secrets import read_secret
from streamfl.contract.role import Channels, ConfigurationError, Input, PeerError, Receiver, Record, Sender, TopicSpec
from streamfl.encoding.wire import Codec, fingerprint
from streamfl.fdskl.config import WORKER, FdsklSettings
from streamfl.fdskl.learning.iteration import LearningSettings
from streamfl.fdskl.learning.losses import loss_named
from streamfl.fdskl.messages import INCARNATION, PARTIAL_SUM, REVISION, ROUND, Prediction
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
from streamfl.state.state_settings import StateSettings, by_key

__all__ = ["ROLES"]

# The scale of all columns is remembered as one record, with 80 bytes a column.
MOST_COLUMNS = 12_000
_SMALL_SEGMENTS = {"segment.bytes": "67108864"}
# Kinds of messages that parties receive. `_read` says which of them a party does.
_INBOXES: Mapping[str, Codec[Any]] = {"incarnations": INCARNATION, "rounds": ROUND, "sums": PARTIAL_SUM, "revisions": REVISION}
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


def _sender(message: Any) -> str:
    name: str = message.sender
    return name


def _decoder(codec: Codec[Any]) -> Callable[[Record], Any]:
    return lambda record: codec.decode(record.value)


def _heard(settings: FdsklSettings) -> list[str]:
    """Kinds of messages that others may send to this party."""
    if len(settings.federation.parties) == 1:
        return []
    actives, own = settings.federation.active_parties, settings.required_party()
    asked = ["rounds"] if actives != [own] else []
    return ["incarnations", *asked, "sums", *(["revisions"] if own == actives[0] else [])]


def _read(settings: FdsklSettings) -> list[str]:
    """Kinds of messages that this party reads. A leaf reads no sums, for no party is below it."""
    number = settings.federation.parties.index(settings.required_party())
    leaf = not any(tree.children[number] for tree in trees_of(settings).values())
    return [kind for kind in _heard(settings) if kind != "sums" or not leaf]


def _said(settings: FdsklSettings) -> dict[str, list[str]]:
    """Kinds of messages that this party sends, and the names of the parties that each goes to."""
    own = settings.required_party()
    others = [name for name in settings.federation.parties if name != own]
    number = settings.federation.parties.index(own)
    parents = {tree.parent[number] for tree in trees_of(settings).values()} - {None}
    said = {
        "incarnations": others,
        "sums": [settings.federation.parties[parent] for parent in sorted(one for one in parents if one is not None)],
    }
    predicts = settings.federation.active_party
    return said | ({"rounds": others} if settings.is_active else {}) | ({"revisions": [predicts]} if own != predicts else {})


def _channels(settings: FdsklSettings) -> Channels:
    own, samples = settings.required_party(), settings.required_samples(f"a {WORKER}")
    federation = settings.federation.name
    inputs = {"samples": Input(samples.topic, SampleReader(samples.samples).decode)}
    if settings.is_active:
        labels = settings.required_labels("the active party")
        square = settings.learning.loss == "square"
        decode = LabelReader(labels, labels.label_range if square else None, "labels.label_range").decode
        inputs["labels"] = Input(labels.topic, decode if square else _checked(decode))
    for kind in _read(settings):
        topic = f"{federation}.{own}.{kind}"
        inputs[kind] = Input(topic, _decoder(_INBOXES[kind]), makes_room=True, sender=Sender(WORKER, _sender))
    outputs = {f"{kind}/{to}": f"{federation}.{to}.{kind}" for kind, names in _said(settings).items() for to in names}
    receivers = {f"{kind}/{to}": Receiver(WORKER, to) for kind, names in _said(settings).items() for to in names}
    if log := _log(settings):
        inputs["turns"] = Input(log, decode_signed(load_identity(settings)), makes_room=True, signed=True)
        outputs["turns"] = log
    return Channels(
        inputs=inputs,
        outputs=outputs | ({"predictions": f"{federation}.predictions"} if own == settings.federation.active_party else {}),
        changelogs={"state": f"{settings.member}.state"},
        receivers=receivers,
        party=own,
        times=timed(settings.predictions),
    )


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


def _between(settings: FdsklSettings) -> list[str]:
    """The topics between parties that this party reads or writes."""
    federation, own = settings.federation.name, settings.required_party()
    heard = [f"{federation}.{own}.{kind}" for kind in _read(settings)]
    said = [f"{federation}.{to}.{kind}" for kind, names in _said(settings).items() for to in names]
    log = _log(settings)
    return list(dict.fromkeys((*heard, *said, *([] if log is None else [log]))))


def _topics(settings: FdsklSettings) -> list[TopicSpec]:
    federation = settings.federation.name
    caution = _CAUTION.get(settings.aggregation.mask, "") if len(settings.federation.parties) > 1 else ""
    labels = [settings.required_labels("the active party").topic] if settings.is_active else []
    users = [settings.required_samples(f"a {WORKER}").topic, *labels]
    predicts = settings.required_party() == settings.federation.active_party
    predictions = [TopicSpec(f"{federation}.predictions", None, compacted=False)] if predicts else []
    return [
        *(TopicSpec(topic, None, compacted=False, users=True) for topic in users),
        *(TopicSpec(topic, None, compacted=False, caution=caution) for topic in _between(settings)),
        *predictions,
        TopicSpec(f"{settings.member}.state", None, compacted=True, preferred=_SMALL_SEGMENTS),
        TopicSpec(settings.dead_letters, None, compacted=False),
    ]


def _partitioned_like(settings: FdsklSettings) -> dict[str, str]:
    """An entity's records, messages and state lie in the partition of the same number at all parties."""
    like = settings.required_samples(f"a {WORKER}").topic
    labels = [settings.required_labels("the active party").topic] if settings.is_active else []
    return dict.fromkeys((*labels, *_between(settings), f"{settings.member}.state"), like)


_MAY_CHANGE = {
    # Which member may write for which party is checked with each message.
    "federation.members",
    "learning.bandwidth",
    "learning.bandwidth_multiplier",
    "learning.positive_weight",
    "learning.solver",
    "learning.features_limit",
    "learning.block_instances",
    "learning.first_instances",
    "learning.window",
    "learning.visits",
    "learning.sweeps",
    "learning.cache_bytes",
    "learning.regularisation",
    "learning.step",
    "learning.step_rule",
    "learning.horizon",
    "learning.catch_up_samples",
    "learning.catch_up_patience_seconds",
    "aggregation.study",
    # The state remembers a digest of the secret and refuses another one.
    "aggregation.secret_file",
    "aggregation.round_seconds",
    "aggregation.rounds_in_flight",
    "alignment.reply_seconds",
    "alignment.expiry_seconds",
    "alignment.limit",
    "alignment.revise",
    "alignment.linger_ms",
    "alignment.patience_seconds",
    "standardisation.first_entities",
    "privacy.input_norm",
    "privacy.input_noise",
    "privacy.features_per_entity",
    "samples.keyed_by_entity",
    "samples.format",
    "labels.format",
}


def _state_settings(settings: FdsklSettings) -> StateSettings:
    """Settings that a party's state was made with: of its columns, its features, and what the active party has learnt."""
    content = by_key(
        settings,
        ("federation", "party", "samples", "labels", "learning", "aggregation", "alignment", "standardisation", "privacy"),
    )
    if not settings.is_active:
        # Only the active party uses these keys. Another party's file may have them.
        content = {key: value for key, value in content.items() if key not in ("learning.loss", "learning.block_features")}
    return StateSettings.of(content, _MAY_CHANGE)


def _begins_anew(settings: FdsklSettings) -> bool:
    """Whether this party alone knows the model. Any other would forget the secret that the model's features are drawn from."""
    return settings.federation.active_parties == [settings.own_party]


ROLES: dict[str, RoleKind[Any]] = {
    WORKER: RoleKind(
        name=WORKER,
        settings=FdsklSettings,
        build=_build,
        channels=_channels,
        topics=_topics,
        state_settings=_state_settings,
        partitioned_like=_partitioned_like,
        begins_anew=_begins_anew,
        state=STATE,
    )
}
