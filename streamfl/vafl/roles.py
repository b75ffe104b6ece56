"""The roles of VAFL, as ``[role] kind`` names them."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from functools import partial

import msgspec

from streamfl.configuration.secrets import read_secret
from streamfl.contract.channel_table import USER, Channel, ChannelTable
from streamfl.contract.role import BadRecord, ConfigurationError, Record
from streamfl.encoding.wire import ROOM
from streamfl.records.header_propagation import predictions_channel
from streamfl.records.labels import Label, LabelReader
from streamfl.records.predictions import prediction_encoder
from streamfl.records.samples import Sample, SampleReader
from streamfl.roles.role_kind import RoleKind, by_name
from streamfl.vafl.config import COORDINATOR, PARTY, VaflSettings
from streamfl.vafl.coordinator.role import VaflCoordinator
from streamfl.vafl.functions.models import embedding_function, head, output_loss
from streamfl.vafl.given import CoordinatorGiven, PartyGiven
from streamfl.vafl.messages import EMBEDDING, REPLY, Prediction
from streamfl.vafl.metrics import CoordinatorMetrics, LabelMetrics, PartyMetrics, ScoreMetrics
from streamfl.vafl.party.role import VaflParty
from streamfl.vafl.privacy import Mechanism
from streamfl.vafl.state import COORDINATOR_STATE, PARTY_STATE
from streamfl.vafl.state_settings import coordinator_state_settings, party_state_settings

__all__ = ["ROLES"]


def _secret(settings: VaflSettings) -> str:
    path = settings.privacy.secret_file
    if path is None:
        return ""
    return read_secret(path, "privacy.secret_file").hex()


def _start(settings: VaflSettings, secret: str) -> bytes:
    """The start that first parameters are drawn from, unless a partition remembers another; empty: from the
    federation's seed.

    The start is remembered on the cluster. So it is derived from the secret, and is not the secret itself.
    """
    if settings.learning.seeded_start:
        return b""
    if not secret:
        return os.urandom(32)
    content = msgspec.msgpack.encode((secret, settings.fingerprint))
    return hashlib.blake2b(content, digest_size=32, person=b"first parameters").digest()


def _mechanism(settings: VaflSettings, secret: str) -> Mechanism | None:
    privacy = settings.privacy
    if privacy.embedding_norm is None or privacy.embedding_noise is None:
        return None
    mechanism = Mechanism(
        embedding_norm=privacy.embedding_norm,
        embedding_noise=privacy.embedding_noise,
        gradient_norm=privacy.gradient_norm,
        gradient_noise=privacy.gradient_noise,
        budget=privacy.budget_mu,
        secret=secret,
    )
    _check_budget(
        settings, "sending an entity once and one step on its gradient cost", math.sqrt(mechanism.cost(1, 1))
    )
    return mechanism


def _check_budget(settings: VaflSettings, what: str, least: float) -> None:
    """ConfigurationError if privacy.budget_mu is too small to learn from any entity.

    what: text that names the release needed to learn.
    least: mu of that release.
    """
    budget = settings.privacy.budget_mu
    if budget is not None and budget < least:
        raise ConfigurationError(
            f"privacy.budget_mu = {budget:g}: {what} mu = {least:.4g}, so nothing would ever be learnt: "
            "raise the budget or the noise"
        )


def _build_party(settings: VaflSettings) -> VaflParty:
    _check_remembered(settings, settings.inputs)
    secret = _secret(settings)
    given = PartyGiven(
        function=embedding_function(settings, settings.inputs),
        start=_start(settings, secret),
        mechanism=_mechanism(settings, secret),
        carry=settings.predictions.carried(by_party=True),
    )
    return VaflParty(settings, given)


def _check_remembered(settings: VaflSettings, inputs: int) -> None:
    """ConfigurationError if an entity's features and gradient exceed one record: a party remembers them
    together."""
    size, number = settings.federation.embedding_size, settings.number_bytes
    if (inputs + size) * number > ROOM:
        narrower = ', or set federation.precision = "float32"' if number == 8 else ""
        raise ConfigurationError(
            f"samples.features: the party remembers an entity's {inputs:,} inputs and a gradient of "
            f"federation.embedding_size = {size:,} numbers in one record, {(inputs + size) * number:,} bytes "
            f"of {ROOM:,}: at most {ROOM // number - size:,} inputs are possible; name fewer, or lower "
            f"federation.embedding_size{narrower}"
        )


def _build_coordinator(settings: VaflSettings) -> VaflCoordinator:
    loss, noise, secret = output_loss(settings), settings.privacy.reply_noise, _secret(settings)
    if noise:
        _check_budget(settings, "answering with an entity's label once costs", loss.sensitivity / noise)
    given = CoordinatorGiven(
        head=head(settings),
        loss=loss,
        start=_start(settings, secret),
        secret=secret,
        encode=prediction_encoder(settings.predictions, settings.predictions_topic, Prediction),
        carry=settings.predictions.carried(by_party=False),
    )
    return VaflCoordinator(settings, given)


def _entity(sample: Sample) -> str:
    return sample.client


def _decode_label(settings: VaflSettings) -> Callable[[Record], Label]:
    labels = settings.required_labels("a vafl-coordinator")
    # A class label has no range: the coordinator checks it against the number of classes.
    square = settings.learning.loss == "square"
    decode = LabelReader(labels, labels.label_range if square else None, "labels.label_range").decode
    if not (square and settings.privacy.reply_noise):
        return decode

    def decode_within_range(record: Record) -> Label:
        label = decode(record)
        if not 0 <= label.label <= 1:
            raise BadRecord(
                "label",
                f"{labels.label} is outside labels.label_range = {list(labels.label_range)}, but "
                "privacy.reply_noise hides labels only within it: give the range of all possible labels",
            )
        return label

    return decode_within_range


def _party_table(settings: VaflSettings) -> ChannelTable:
    own, samples = settings.required_party(), settings.required_samples("a vafl-party")
    # Each partition has a ledger of its own. In another partition an entity's whole budget could be spent
    # again.
    checked = settings.privacy.embedding_norm is not None and samples.keyed_by_entity
    if checked and samples.entity is None and samples.key != "text":
        raise ConfigurationError(
            "samples.keyed_by_entity: which partition is an entity's own is known where its name is the key "
            "as text, not with "
            f'samples.key = "{samples.key}"; set it to false if your producer puts an entity into one '
            "partition always"
        )
    rows = [
        Channel(
            name="samples",
            links={(USER, own): samples.topic},
            decode=SampleReader(samples.samples),
            keyed_by=_entity if checked else None,
        ),
        *_between(settings, "samples"),
    ]
    return ChannelTable(own, rows, _kinds(settings))


def _coordinator_table(settings: VaflSettings) -> ChannelTable:
    labels = settings.required_labels("a vafl-coordinator")
    rows = [
        Channel(name="labels", links={(USER, COORDINATOR): labels.topic}, decode=_decode_label(settings)),
        *_between(settings, "labels"),
        predictions_channel(
            settings.predictions, settings.predictions_topic, COORDINATOR, _caution(settings)
        ),
    ]
    return ChannelTable(COORDINATOR, rows, _kinds(settings))


def _kinds(settings: VaflSettings) -> dict[str, str]:
    return dict.fromkeys(settings.federation.parties, PARTY)


def _between(settings: VaflSettings, like: str) -> list[Channel]:
    """The channels between parties and coordinator. An entity's messages are in its partition of the user's
    topic ``like``."""
    name, parties = settings.federation.name, settings.federation.parties
    return [
        Channel(
            name="embeddings",
            links={(party, COORDINATOR): f"{name}.{party}.embeddings" for party in parties},
            from_each=True,
            decode=EMBEDDING.read,
            like=like,
            placed=True,
        ),
        Channel(
            name="gradients",
            links={(COORDINATOR, party): f"{name}.{party}.gradients" for party in parties},
            to_each=True,
            decode=REPLY.read,
            makes_room=True,
            like=like,
            placed=True,
        ),
    ]


def _caution(settings: VaflSettings) -> str:
    """What readers of the predictions learn about single parties because embeddings come one by one; empty:
    nothing."""
    alignment, count = settings.alignment, len(settings.federation.parties)
    if alignment.quorum == count or (alignment.quorum > 1 and not alignment.revise):
        return ""
    told = ["the first prediction is made of one party's embedding alone"] if alignment.quorum == 1 else []
    told += ["each revision adds one party's embedding to the one before"] if alignment.revise else []
    fewer = "" if alignment.quorum == 1 else "alignment.revise = false, or "
    return (
        f"{', and '.join(told)}: grant Read to those who may know that, or set {fewer}alignment.quorum = "
        f"{count}"
    )


_kind = partial(RoleKind[VaflSettings], settings=VaflSettings)

ROLES = by_name(
    _kind(
        name=PARTY,
        build=_build_party,
        table=_party_table,
        state_settings=party_state_settings,
        state=PARTY_STATE,
        metrics=(PartyMetrics,),
    ),
    _kind(
        name=COORDINATOR,
        build=_build_coordinator,
        table=_coordinator_table,
        state_settings=coordinator_state_settings,
        state=COORDINATOR_STATE,
        metrics=(CoordinatorMetrics, ScoreMetrics, LabelMetrics),
    ),
)
