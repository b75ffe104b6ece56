"""The role of FDSKL, as ``[role] kind`` names it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import Any

import msgspec

from streamfl.configuration.secrets import read_secret
from streamfl.contract.channel_table import USER, Channel, ChannelTable
from streamfl.contract.role import ConfigurationError
from streamfl.encoding.wire import Codec
from streamfl.fdskl.config import WORKER, FdsklSettings
from streamfl.fdskl.messages import INCARNATION, PARTIAL_SUM, REVISION, ROUND, Prediction
from streamfl.fdskl.metrics import ActiveMetrics, PartyMetrics
from streamfl.fdskl.party.given import PartyGiven
from streamfl.fdskl.party.role import FdsklParty
from streamfl.fdskl.party.turn_signing import decode_signed, signer
from streamfl.fdskl.state import STATE
from streamfl.identity import load_identity
from streamfl.records.header_propagation import carried, carried_nothing, predictions_channel
from streamfl.records.labels import LabelReader, of_two_classes
from streamfl.records.predictions import prediction_encoder
from streamfl.records.samples import SampleReader
from streamfl.roles.role_kind import RoleKind, by_name, own_sections
from streamfl.state.state_settings import StateSettings

__all__ = ["ROLES"]

# The scale of all columns is remembered as one record, with 80 bytes a column.
MOST_COLUMNS = 12_000
_CAUTION = {
    "paper": 'with aggregation.mask = "paper" readers learn differences of a party\'s columns: grant Read to '
    "nobody but the party",
    "none": 'with aggregation.mask = "none" readers learn a party\'s phases: grant Read to nobody but the '
    "party",
}


def _build(settings: FdsklSettings) -> FdsklParty:
    if len(settings.columns) > MOST_COLUMNS:
        raise ConfigurationError(
            f"samples.features: {len(settings.columns):,} columns: their common state is one record, so at "
            f"most {MOST_COLUMNS:,} are expected"
        )
    log, path = _log(settings), settings.aggregation.secret_file
    secret = os.urandom(32) if path is None else read_secret(path, "aggregation.secret_file")
    given = PartyGiven(
        secret=secret if path is None else _derived(secret, settings),
        noise_secret=hashlib.blake2b(secret, digest_size=32, person=b"input noise").hexdigest(),
        entropy=lambda: os.urandom(32),
        encode=prediction_encoder(settings.predictions, settings.predictions_topic, Prediction),
        carry=carried(settings.predictions) if settings.predicts else carried_nothing,
        sign=signer(None if log is None else load_identity(settings), log or ""),
    )
    return FdsklParty(settings, given)


def _derived(secret: bytes, settings: FdsklSettings) -> bytes:
    """The key of the frequencies, derived from the secret and the federation, so that two federations have
    nothing in common."""
    content = msgspec.msgpack.encode((secret, settings.fingerprint, settings.own_party))
    return hashlib.blake2b(content, digest_size=32, person=b"frequencies").digest()


def _table(settings: FdsklSettings) -> ChannelTable:
    """The channels of FDSKL. A topic between parties belongs to its reader: FEDERATION.READER.NAME."""
    own, samples = settings.required_party(), settings.required_samples(f"a {WORKER}")
    federation = settings.federation.name
    parties = settings.federation.parties
    actives = settings.federation.active_parties
    predicts = settings.federation.active_party
    pairs = [(writer, reader) for writer in parties for reader in parties if writer != reader]
    sums = {
        (parties[child], parties[parent])
        for tree in settings.trees.values()
        for child, parent in enumerate(tree.parent)
        if parent is not None
    }

    def between(name: str, codec: Codec[Any], links: Iterable[tuple[str, str]]) -> Channel:
        return Channel(
            name=name,
            links={(writer, reader): f"{federation}.{reader}.{name}" for writer, reader in links},
            decode=codec.read,
            to_each=True,
            claimed_sender=lambda message: message.sender,
            makes_room=True,
            like="samples",
            placed=True,
            caution=_CAUTION.get(settings.aggregation.mask, ""),
        )

    rows = [
        Channel(name="samples", links={(USER, own): samples.topic}, decode=SampleReader(samples.samples)),
        *([_labels(settings)] if settings.is_active else []),
        between("incarnations", INCARNATION, pairs),
        between("rounds", ROUND, [(writer, reader) for writer, reader in pairs if writer in actives]),
        between("sums", PARTIAL_SUM, sorted(sums)),
        between("revisions", REVISION, [(writer, reader) for writer, reader in pairs if reader == predicts]),
        predictions_channel(
            settings.predictions, settings.predictions_topic, predicts, placed_like="samples"
        ),
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
            placed=True,
            caution=_CAUTION.get(settings.aggregation.mask, ""),
        )
        rows.append(turns)
    return ChannelTable(own, rows, dict.fromkeys(parties, WORKER))


def _labels(settings: FdsklSettings) -> Channel:
    labels, square = settings.required_labels("the active party"), settings.learning.loss == "square"
    decode = LabelReader(labels, labels.label_range if square else None, "labels.label_range").decode
    links = {(USER, settings.required_party()): labels.topic}
    return Channel(
        name="labels", links=links, decode=decode if square else of_two_classes(decode), like="samples"
    )


def _log(settings: FdsklSettings) -> str | None:
    """The topic that orders the iterations of several active parties; None for a party that does not read
    it."""
    shared = settings.is_active and len(settings.federation.actives) > 1
    return f"{settings.federation.name}.turns" if shared else None


def _state_settings(settings: FdsklSettings) -> StateSettings:
    """Settings that a party's state was made with: of its columns, its features, and what the active party
    has learnt."""
    # Only the active party uses these keys.
    without = () if settings.is_active else ("learning.loss", "learning.block_features")
    return own_sections(settings, without=without)


def _begins_anew(settings: FdsklSettings) -> bool:
    """Whether this party alone knows the model. Any other would forget the secret that the model's features
    are drawn from."""
    return settings.federation.active_parties == [settings.own_party]


ROLES = by_name(
    RoleKind(
        name=WORKER,
        settings=FdsklSettings,
        build=_build,
        table=_table,
        state_settings=_state_settings,
        begins_anew=_begins_anew,
        state=STATE,
        metrics=(PartyMetrics, ActiveMetrics),
    )
)
