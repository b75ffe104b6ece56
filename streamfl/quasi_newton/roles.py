"""The three roles of the quasi-Newton system, as ``[role] kind`` would name them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamfl.configuration.secrets import read_secret
from streamfl.contract.role import Channels, ConfigurationError, Input, PeerError, Receiver, Record, Sender, TopicSpec
from streamfl.encoding.wire import fingerprint
from streamfl.quasi_newton import SYSTEM, messages
from streamfl.quasi_newton.config import COORDINATOR, GUEST, HOST, MOST_COLUMNS, QuasiNewtonSettings, link_files
from streamfl.quasi_newton.encryption import bignum
from streamfl.quasi_newton.encryption.end_to_end import EncryptedLink
from streamfl.quasi_newton.encryption.key_file import read_key_file
from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey
from streamfl.quasi_newton.members.coordinator import CoordinatorSettings, CoordinatorTask
from streamfl.quasi_newton.members.figures import COUNTS
from streamfl.quasi_newton.members.guest import GuestTask
from streamfl.quasi_newton.members.host import HostTask
from streamfl.quasi_newton.members.party_settings import PartySettings
from streamfl.quasi_newton.messages import HEADER_BYTES, codec
from streamfl.quasi_newton.scoring.predictions import Prediction
from streamfl.quasi_newton.scoring.settings import ScoringSettings
from streamfl.records.header_propagation import carried, timed
from streamfl.records.labels import LabelReader
from streamfl.records.predictions import prediction_encoder
from streamfl.records.samples import SampleReader
from streamfl.roles.message_fragments import Limits, decoded_in_fragments
from streamfl.roles.partitioned_role import PartitionedRole
from streamfl.roles.role_kind import RoleKind
from streamfl.state.state_settings import StateSettings, by_key

__all__ = ["ROLES"]

_SMALL_SEGMENTS = {"segment.bytes": "67108864"}
# Most fragmented messages that wait in a partition. Each sender has at most two under way.
UNDER_WAY = 256
PART_SECONDS = 86_400.0


def _fingerprint(settings: QuasiNewtonSettings) -> int:
    federation, learning, encryption = settings.federation, settings.learning, settings.encryption
    return fingerprint(
        "quasi-newton",
        federation.name,
        federation.seed,
        tuple(federation.parties),
        federation.guest_party,
        learning.batch,
        # These limits keep parties from finding out labels, and are only as strong as at the member with the weakest ones.
        learning.min_batch,
        learning.min_support,
        learning.largest_leverage,
        learning.memory,
        learning.curvature_every,
        learning.regularisation,
        learning.input_bound,
        learning.output_bound,
        encryption.precision,
        settings.scoring.enabled,
        settings.scoring.quantum,
        settings.alignment.method,
        settings.alignment.limit,
    )


def _residuals(settings: QuasiNewtonSettings, host: str) -> str:
    return f"{settings.federation.name}.{host}.residuals"


def _outputs(settings: QuasiNewtonSettings, host: str) -> str:
    return f"{settings.federation.name}.{host}.outputs"


def _questions(settings: QuasiNewtonSettings, host: str) -> str:
    return f"{settings.federation.name}.{host}.questions"


def _answers(settings: QuasiNewtonSettings, host: str) -> str:
    return f"{settings.federation.name}.{host}.answers"


def _predictions(settings: QuasiNewtonSettings) -> str:
    return f"{settings.federation.name}.predictions"


def _member(settings: QuasiNewtonSettings, make: Any) -> PartitionedRole[Any]:
    decode = {name: one.decode for name, one in _channels(settings).inputs.items()}
    limits = Limits(settings.message_bytes + HEADER_BYTES, UNDER_WAY, UNDER_WAY, PART_SECONDS, messages.FRAGMENT_BYTES)
    # A message put together from fragments is decoded like a single record.
    whole = dict.fromkeys(decode, _decoder(settings))
    return PartitionedRole(make, whole, limits, settings.alignment.patience_seconds, settings.role.kind, COUNTS, SYSTEM)


def _secret(settings: QuasiNewtonSettings, path: str | None, key: str, *names: str) -> bytes:
    """Returns the secret in the file at ``path``. Without encryption: a hash that everybody could compute."""
    if path is not None:
        return read_secret(path, key)
    if settings.encryption.precision == "paillier":
        raise ConfigurationError(f"{key} is missing: a value that everybody can compute is no secret")
    return hashlib.blake2b(repr((settings.federation.name, settings.federation.seed, names)).encode(), digest_size=32).digest()


def _party_settings(settings: QuasiNewtonSettings) -> PartySettings:
    federation, learning, encryption = settings.federation, settings.learning, settings.encryption
    alignment, own = settings.alignment, settings.required_party()
    if encryption.precision == "paillier":
        bignum.require()
    columns = SampleReader(settings.required_samples("a party").samples).dimension
    if columns >= MOST_COLUMNS:
        raise ConfigurationError(f"samples.features: {columns:,} columns, fewer than {MOST_COLUMNS:,} are expected")
    files = link_files(settings) or {}
    others = federation.hosts if settings.role.kind == GUEST else [federation.guest_party]
    links, topics, scoring_topics = {}, {}, {}
    known = {_secret(settings, encryption.secret_file, "encryption.secret_file", "party", own)}
    for other in others:
        pair = sorted((own, other))
        secret = _secret(settings, files.get(other), "encryption.link_secret_file", "link", *pair)
        if secret in known:
            raise ConfigurationError(f"encryption.link_secret_file: the link with {other!r} has a secret that is in use already")
        known.add(secret)
        links[other] = EncryptedLink(secret, federation.name)
        host = other if settings.role.kind == GUEST else own
        both = _residuals(settings, host), _outputs(settings, host)
        topics[other] = both if settings.role.kind == GUEST else (both[1], both[0])
        both = _questions(settings, host), _answers(settings, host)
        scoring_topics[other] = both if settings.role.kind == GUEST else (both[1], both[0])
    return PartySettings(
        federation=federation.name,
        own=own,
        guest=federation.guest_party,
        hosts=tuple(federation.hosts),
        fingerprint=_fingerprint(settings),
        seed=federation.seed,
        columns=columns,
        learning=learning.learning,
        kinds=settings.kinds,
        encrypted=encryption.precision == "paillier",
        key_bits=encryption.key_bits,
        key_fingerprint=encryption.key_fingerprint or "",
        masked=encryption.mask_gradients,
        secret=_secret(settings, encryption.secret_file, "encryption.secret_file", "party", own),
        links=links,
        link_topics=topics,
        method=settings.preprocessing.method,
        min_batch=learning.min_batch,
        min_support=learning.min_support,
        largest_leverage=learning.largest_leverage,
        entities=alignment.entities,
        settle=alignment.settle_seconds,
        every=settings.retraining.every_seconds,
        more=settings.retraining.entities or learning.batch,
        hashed=alignment.method == "keyed-hash",
        held_out=alignment.held_out,
        most=alignment.limit,
        expiry=alignment.expiry_seconds,
        codec=codec(settings.message_bytes),
        scoring=ScoringSettings(
            enabled=settings.scoring.enabled,
            quantum=settings.scoring.quantum,
            interval=settings.scoring.interval_seconds,
            patience=alignment.patience_seconds,
            versions=settings.scoring.versions,
            calibration=settings.scoring.calibration_entities,
            scale=settings.scoring.scale,
            topics=scoring_topics,
            encode=prediction_encoder(settings.predictions, _predictions(settings), Prediction),
            carry=carried(settings.predictions),
        ),
    )


def _build_guest(settings: QuasiNewtonSettings) -> PartitionedRole[GuestTask]:
    party = _party_settings(settings)
    return _member(settings, lambda outbox: GuestTask(party, outbox))


def _build_host(settings: QuasiNewtonSettings) -> PartitionedRole[HostTask]:
    party = _party_settings(settings)
    return _member(settings, lambda outbox: HostTask(party, outbox))


def _build_coordinator(settings: QuasiNewtonSettings) -> PartitionedRole[CoordinatorTask]:
    federation = settings.federation
    own = CoordinatorSettings(
        federation=federation.name,
        parties=tuple(federation.parties),
        guest=federation.guest_party,
        fingerprint=_fingerprint(settings),
        learning=settings.learning.learning,
        kinds=settings.kinds,
        key=_private_key(settings),
        most_batches=settings.alignment.limit // settings.learning.batch,
        codec=codec(settings.message_bytes),
    )
    return _member(settings, lambda outbox: CoordinatorTask(own, outbox))


def _private_key(settings: QuasiNewtonSettings) -> PaillierPrivateKey | None:
    encryption = settings.encryption
    if encryption.precision == "plain":
        return None
    if encryption.key_file is None:
        raise ConfigurationError("encryption.key_file is missing: the coordinator decrypts")
    bignum.require()
    with_file = read_key_file(Path(encryption.key_file))
    for key in with_file:
        if (key.public.fingerprint, key.public.bits) == (encryption.key_fingerprint, encryption.key_bits):
            return key
    raise ConfigurationError(
        f"encryption.key_file = {encryption.key_file!r}: has no key of {encryption.key_bits} bits with "
        f"encryption.key_fingerprint = {encryption.key_fingerprint}"
    )


def _decoder(settings: QuasiNewtonSettings) -> Callable[[Record], Any]:
    own = codec(settings.message_bytes)
    return lambda record: own.decode(record.value)


def _sender(message: Any) -> str:
    name: str = message.sender
    return name


def _for_nobody(_message: Any) -> None:
    """Returns None: the coordinator signs its messages as itself, not for a party."""


def _checked(decode: Callable[[Record], Any]) -> Callable[[Record], Any]:
    def checked(record: Record) -> Any:
        label = decode(record)
        if label.label not in (0.0, 1.0):
            raise PeerError("label", f"the label is {label.label:g}, 0 or 1 is expected")
        return label

    return checked


def _channels(settings: QuasiNewtonSettings) -> Channels:
    federation, kind, scores = settings.federation, settings.role.kind, settings.scoring.enabled
    decode = decoded_in_fragments(_decoder(settings))
    changelogs = {"state": f"{settings.member}.state"}
    if kind == COORDINATOR:
        parties = {party: GUEST if party == federation.guest_party else HOST for party in federation.parties}
        return Channels(
            inputs={
                f"uploads/{party}": Input(
                    f"{federation.name}.{party}.uploads",
                    decode,
                    makes_room=True,
                    sender=Sender(kind, _sender),
                )
                for party, kind in parties.items()
            },
            outputs={f"decisions/{party}": f"{federation.name}.{party}.decisions" for party in parties},
            changelogs=changelogs,
            receivers={f"decisions/{party}": Receiver(kind, party) for party, kind in parties.items()},
        )
    own, samples = settings.required_party(), settings.required_samples("a party")
    inputs = {"samples": Input(samples.topic, SampleReader(samples.samples).decode)}
    outputs = {"uploads": f"{federation.name}.{own}.uploads"}
    receivers = {"uploads": Receiver(COORDINATOR)}
    if kind == GUEST:
        labels = settings.required_labels("the guest")
        inputs["labels"] = Input(labels.topic, _checked(LabelReader(labels, None).decode))
        for host in federation.hosts:
            inputs[f"outputs/{host}"] = Input(_outputs(settings, host), decode, makes_room=True, sender=Sender(HOST, _sender))
            outputs[f"residuals/{host}"] = _residuals(settings, host)
            receivers[f"residuals/{host}"] = Receiver(HOST, host)
            if scores:
                inputs[f"answers/{host}"] = Input(_answers(settings, host), decode, makes_room=True, sender=Sender(HOST, _sender))
                outputs[f"questions/{host}"] = _questions(settings, host)
                receivers[f"questions/{host}"] = Receiver(HOST, host)
        if scores:
            outputs["predictions"] = _predictions(settings)
    else:
        inputs["residuals"] = Input(_residuals(settings, own), decode, makes_room=True, sender=Sender(GUEST, _sender))
        outputs["outputs"] = _outputs(settings, own)
        receivers["outputs"] = Receiver(GUEST, federation.guest_party)
        if scores:
            inputs["questions"] = Input(_questions(settings, own), decode, makes_room=True, sender=Sender(GUEST, _sender))
            outputs["answers"] = _answers(settings, own)
            receivers["answers"] = Receiver(GUEST, federation.guest_party)
    inputs["decisions"] = Input(
        f"{federation.name}.{own}.decisions", decode, makes_room=True, sender=Sender(COORDINATOR, _for_nobody)
    )
    times = timed(settings.predictions)
    return Channels(inputs=inputs, outputs=outputs, changelogs=changelogs, receivers=receivers, party=own, times=times)


_LINKED = (".residuals", ".outputs", ".questions", ".answers")
_LINK = "sealed between host and guest: grant Read to nobody but the two, the coordinator least of all"


def _topics(settings: QuasiNewtonSettings) -> list[TopicSpec]:
    """Topics between members have one partition each, because all entities are rows of one training table."""
    channels, users = _channels(settings), [one.topic for one in (settings.samples, settings.labels) if one is not None]
    between = [one.topic for one in channels.inputs.values() if one.topic not in users]
    between += [topic for name, topic in channels.outputs.items() if name != "predictions"]
    predictions = [topic for name, topic in channels.outputs.items() if name == "predictions"]
    return [
        *(TopicSpec(topic, 1, compacted=False, users=True) for topic in users),
        *(
            TopicSpec(topic, 1, compacted=False, caution=_LINK if topic.endswith(_LINKED) else "")
            for topic in between
        ),
        *(TopicSpec(topic, None, compacted=False) for topic in predictions),
        TopicSpec(f"{settings.member}.state", 1, compacted=True, preferred=_SMALL_SEGMENTS),
        TopicSpec(settings.dead_letters, None, compacted=False),
    ]


def _reasoned_topics(settings: QuasiNewtonSettings) -> list[TopicSpec]:
    """The same topics, with the reason why there is one partition, for users whose topic has more."""
    return [replace(one, reason=_ONE_TABLE) if one.partitions == 1 else one for one in _topics(settings)]


_ONE_TABLE = "for all entities are rows of one training table"
_MAY_CHANGE = {
    "federation.members",
    "encryption.study",
    "encryption.key_file",
    # A training under the old key ends, and begins again under the new one.
    "encryption.key_fingerprint",
    "encryption.key_bits",
    # What was sealed with the old secret stays sealed with it. A mask that cannot be found again gives a number out of bounds.
    "encryption.link_secret_file",
    "alignment.entities",
    "alignment.settle_seconds",
    "alignment.expiry_seconds",
    "alignment.patience_seconds",
    "scoring.interval_seconds",
    "scoring.versions",
    "scoring.calibration_entities",
    "scoring.base_points",
    "scoring.base_odds",
    "scoring.doubling",
    # Entities of a batch stay in it, and held-out entities join no batch.
    "alignment.held_out",
    # Only the coordinator computes with these, or they are only reported. Training goes on from the remembered state.
    "learning.learning_rate",
    "learning.largest_step",
    "learning.freeze_below",
    "learning.tolerance",
    "learning.epochs",
    "retraining.every_seconds",
    "retraining.entities",
    "samples.format",
    "labels.format",
}


# A release with layout 1 would take a first batch of fewer than learning.batch rows for damaged.
_PARTY_LAYOUT = 2


def _state_settings(settings: QuasiNewtonSettings) -> StateSettings:
    sections = [
        *("federation", "party", "samples", "labels", "learning", "encryption", "alignment", "preprocessing", "retraining"),
        "scoring",
    ]
    layout = 1 if settings.role.kind == COORDINATOR else _PARTY_LAYOUT
    return StateSettings.of(by_key(settings, sections), _MAY_CHANGE, layout)


_BUILD: Mapping[str, Callable[[QuasiNewtonSettings], PartitionedRole[Any]]] = {
    GUEST: _build_guest,
    HOST: _build_host,
    COORDINATOR: _build_coordinator,
}

ROLES: dict[str, RoleKind[Any]] = {
    name: RoleKind(
        name=name,
        settings=QuasiNewtonSettings,
        build=build,
        channels=_channels,
        topics=_reasoned_topics,
        state_settings=_state_settings,
    )
    for name, build in _BUILD.items()
}
