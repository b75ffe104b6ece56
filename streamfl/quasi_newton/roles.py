"""The three roles of the quasi-Newton system, as ``[role] kind`` would name them."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

from streamfl.configuration.secrets import read_secret
from streamfl.contract.channel_table import USER, Channel, ChannelTable
from streamfl.contract.role import ConfigurationError
from streamfl.quasi_newton import SYSTEM, messages
from streamfl.quasi_newton.config import (
    COORDINATOR,
    GUEST,
    HOST,
    MOST_COLUMNS,
    QuasiNewtonSettings,
    link_files,
)
from streamfl.quasi_newton.encryption import bignum
from streamfl.quasi_newton.encryption.end_to_end import EncryptedLink
from streamfl.quasi_newton.encryption.key_file import read_key_file
from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey
from streamfl.quasi_newton.messages import codec
from streamfl.quasi_newton.metrics import (
    CoordinatorMetrics,
    GuestMetrics,
    HeldOutMetrics,
    HostMetrics,
    MemberCounts,
    PartyMetrics,
    TrafficMetrics,
)
from streamfl.quasi_newton.scoring.predictions import Prediction
from streamfl.quasi_newton.state import COORDINATOR_STATE, GUEST_STATE, HOST_STATE
from streamfl.quasi_newton.training.coordinator import CoordinatorTask
from streamfl.quasi_newton.training.given import CoordinatorGiven, PartyGiven
from streamfl.quasi_newton.training.guest import GuestTask
from streamfl.quasi_newton.training.host import HostTask
from streamfl.records.header_propagation import carried, predictions_channel
from streamfl.records.labels import LabelReader, of_two_classes
from streamfl.records.predictions import prediction_encoder
from streamfl.records.samples import SampleReader
from streamfl.roles.fragment_encoding import decoded_in_fragments
from streamfl.roles.message_contents import content_limits
from streamfl.roles.partitioned_role import PartitionedRole, metrics_of
from streamfl.roles.role_kind import RoleKind, by_name, own_sections
from streamfl.state.state_settings import StateSettings

__all__ = ["ROLES"]


def _member(settings: QuasiNewtonSettings, make: Any) -> PartitionedRole[Any]:
    # A message put together from fragments is decoded like a single record.
    inputs, decode = _table(settings).channels.inputs, codec(settings.message_bytes).read
    whole = {name: decode for name, source in inputs.items() if source.sender is not None}
    limits = content_limits(settings.message_bytes, messages.FRAGMENT_BYTES)
    patience, kind = settings.alignment.patience_seconds, settings.role.kind
    senders = {*settings.federation.parties, messages.COORDINATOR_NAME}
    return PartitionedRole(make, whole, limits, patience, kind, MemberCounts(), SYSTEM, senders=senders)


def _secret(settings: QuasiNewtonSettings, path: str | None, key: str, *names: str) -> bytes:
    """Returns the secret in the file at ``path``. Without encryption: a hash that everybody could compute."""
    if path is not None:
        return read_secret(path, key)
    if settings.encryption.precision == "paillier":
        raise ConfigurationError(f"{key} is missing: a value that everybody can compute is no secret")
    return hashlib.blake2b(
        repr((settings.federation.name, settings.federation.seed, names)).encode(), digest_size=32
    ).digest()


def _party_given(settings: QuasiNewtonSettings) -> PartyGiven:
    federation, encryption, own = settings.federation, settings.encryption, settings.required_party()
    if encryption.encrypted:
        bignum.require()
    if settings.columns >= MOST_COLUMNS:
        raise ConfigurationError(
            f"samples.features: {settings.columns:,} columns, fewer than {MOST_COLUMNS:,} are expected"
        )
    files = link_files(settings) or {}
    others = federation.hosts if settings.is_guest else [federation.guest_party]
    own_secret = _secret(settings, encryption.secret_file, "encryption.secret_file", "party", own)
    links, known = {}, {own_secret}
    for other in others:
        pair = sorted((own, other))
        secret = _secret(settings, files.get(other), "encryption.link_secret_file", "link", *pair)
        if secret in known:
            raise ConfigurationError(
                f"encryption.link_secret_file: the link with {other!r} has a secret that is in use already"
            )
        known.add(secret)
        links[other] = EncryptedLink(secret, federation.name)
    return PartyGiven(
        codec=codec(settings.message_bytes),
        secret=own_secret,
        links=links,
        encode=prediction_encoder(settings.predictions, settings.predictions_topic, Prediction),
        carry=carried(settings.predictions),
    )


def _build_guest(settings: QuasiNewtonSettings) -> PartitionedRole[GuestTask]:
    given = _party_given(settings)
    return _member(settings, lambda outbox: GuestTask(settings, given, outbox))


def _build_host(settings: QuasiNewtonSettings) -> PartitionedRole[HostTask]:
    given = _party_given(settings)
    return _member(settings, lambda outbox: HostTask(settings, given, outbox))


def _build_coordinator(settings: QuasiNewtonSettings) -> PartitionedRole[CoordinatorTask]:
    given = CoordinatorGiven(codec(settings.message_bytes), _private_key(settings))
    return _member(settings, lambda outbox: CoordinatorTask(settings, given, outbox))


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


def _table(settings: QuasiNewtonSettings) -> ChannelTable:
    """The channels of quasi-Newton. All entities are rows of one training table, so each topic has one
    partition.

    Between guest and host a topic has the host's name, between coordinator and party the party's:
    FEDERATION.PARTY.NAME."""
    federation, decode = settings.federation, decoded_in_fragments(codec(settings.message_bytes).read)
    own = COORDINATOR if settings.role.kind == COORDINATOR else settings.required_party()
    one = partial(Channel, partitions=1, reason=_ONE_TABLE)
    between = partial(
        one, decode=decode, claimed_sender=lambda message: message.sender, makes_room=True, placed=True
    )
    guest, parties, name = federation.guest_party, federation.parties, federation.name

    def from_hosts(name: str) -> Channel:
        links = {(host, guest): f"{federation.name}.{host}.{name}" for host in federation.hosts}
        return between(name=name, links=links, from_each=True, caution=_LINK)

    def to_hosts(name: str) -> Channel:
        links = {(guest, host): f"{federation.name}.{host}.{name}" for host in federation.hosts}
        return between(name=name, links=links, to_each=True, caution=_LINK)

    rows = [
        between(
            name="uploads",
            links={(party, COORDINATOR): f"{name}.{party}.uploads" for party in parties},
            from_each=True,
        ),
        from_hosts("outputs"),
        to_hosts("residuals"),
    ]
    if settings.scoring.enabled:
        rows += [
            from_hosts("answers"),
            to_hosts("questions"),
            predictions_channel(settings.predictions, settings.predictions_topic, guest),
        ]
    rows.append(
        # The coordinator speaks for no party.
        between(
            name="decisions",
            links={(COORDINATOR, party): f"{name}.{party}.decisions" for party in parties},
            to_each=True,
            claimed_sender=None,
        )
    )
    if (samples := settings.samples) is not None:
        decode_sample = SampleReader(samples.samples)
        rows.insert(0, one(name="samples", links={(USER, own): samples.topic}, decode=decode_sample))
    if (labels := settings.labels) is not None:
        decode_label = of_two_classes(LabelReader(labels, None).decode)
        rows.insert(1, one(name="labels", links={(USER, own): labels.topic}, decode=decode_label))
    return ChannelTable(own, rows, {party: GUEST if party == guest else HOST for party in parties})


_LINK = "sealed between host and guest: grant Read to nobody but the two, the coordinator least of all"
_ONE_TABLE = "for all entities are rows of one training table"
# A release with layout 1 would take a first batch of fewer than learning.batch rows for damaged.
_PARTY_LAYOUT = 2


def _state_settings(settings: QuasiNewtonSettings) -> StateSettings:
    return own_sections(settings, 1 if settings.role.kind == COORDINATOR else _PARTY_LAYOUT)


_kind = partial(
    RoleKind[QuasiNewtonSettings],
    settings=QuasiNewtonSettings,
    table=_table,
    state_settings=_state_settings,
)

ROLES = by_name(
    _kind(
        name=GUEST,
        build=_build_guest,
        state=GUEST_STATE,
        metrics=metrics_of(MemberCounts, PartyMetrics, TrafficMetrics, GuestMetrics, HeldOutMetrics),
    ),
    _kind(
        name=HOST,
        build=_build_host,
        state=HOST_STATE,
        metrics=metrics_of(MemberCounts, PartyMetrics, TrafficMetrics, HostMetrics),
    ),
    _kind(
        name=COORDINATOR,
        build=_build_coordinator,
        state=COORDINATOR_STATE,
        metrics=metrics_of(MemberCounts, CoordinatorMetrics, TrafficMetrics),
    ),
)
