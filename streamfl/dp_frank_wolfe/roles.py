"""The two roles of differentially private Frank-Wolfe, as ``[role] kind`` names them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

from streamfl.configuration.secrets import read_secret
from streamfl.contract.channel_table import USER, Channel, ChannelTable
from streamfl.contract.role import ConfigurationError
from streamfl.dp_frank_wolfe import SYSTEM, messages
from streamfl.dp_frank_wolfe.config import PARTY, SERVER, DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.messages import codec
from streamfl.dp_frank_wolfe.metrics import MemberCounts, PartyMetrics, ServerMetrics
from streamfl.dp_frank_wolfe.party.given import PartyGiven
from streamfl.dp_frank_wolfe.party.readable import (
    label_within,
    readable_label,
    readable_sample,
    samples_within,
)
from streamfl.dp_frank_wolfe.party.role import PartyTask
from streamfl.dp_frank_wolfe.party.window import Bounds
from streamfl.dp_frank_wolfe.server.role import ServerTask
from streamfl.dp_frank_wolfe.serving.party import Serving
from streamfl.dp_frank_wolfe.state import PARTY_STATE, SERVER_STATE
from streamfl.privacy.anchor import Anchor
from streamfl.records.header_propagation import predictions_channel
from streamfl.records.labels import LabelReader
from streamfl.records.samples import SampleReader
from streamfl.roles.fragment_encoding import decoded_in_fragments
from streamfl.roles.message_contents import content_limits
from streamfl.roles.partitioned_role import Outbox, PartitionedRole, metrics_of
from streamfl.roles.role_kind import RoleKind, by_name, own_sections

__all__ = ["ROLES"]


def _member(
    settings: DPFrankWolfeSettings, make: Any, patience: float, **options: Any
) -> PartitionedRole[Any]:
    # A message put together from parts is decoded like a single record.
    inputs, decode = _table(settings).channels.inputs, codec(settings.message_bytes).read
    whole = {name: decode for name, source in inputs.items() if source.sender is not None}
    limits = content_limits(settings.message_bytes, messages.FRAGMENT_BYTES)
    options["senders"] = {*settings.federation.parties, messages.SERVER_NAME}
    return PartitionedRole(
        make, whole, limits, patience, settings.role.kind, MemberCounts(), SYSTEM, **options
    )


# ---- a party


def _build_party(settings: DPFrankWolfeSettings) -> PartitionedRole[PartyTask]:
    public, given = _public_of_party(settings), _given(settings)
    # While the server waits for each of the other parties, this party receives nothing.
    patience = settings.window.patience_seconds * (1 + len(settings.federation.parties))
    ledger: dict[str, Callable[[PartyTask], Any]] = {"ledger": PartyTask.changed_ledger}

    def make(outbox: Outbox[MemberCounts]) -> PartyTask:
        task = PartyTask(public, given, outbox)
        if settings.serving.mode != "off":
            task.serving = Serving(task)
        return task

    return _member(settings, make, patience, kept_apart=ledger)


def _given(settings: DPFrankWolfeSettings) -> PartyGiven:
    privacy = settings.privacy
    anchor = None
    if privacy.ledger_file is not None:
        anchor = Anchor.open(privacy.ledger_file, settings.ledger_name, settings.required_party())
    return PartyGiven(
        secret=_secret(settings),
        anchor=anchor,
        bounds=_bounds(settings),
        label_bounds=_label_bounds(settings),
    )


def _bounds(settings: DPFrankWolfeSettings) -> Bounds:
    return Bounds.of(settings.bounds.centre, settings.bounds.bound, settings.own_columns)


def _label_bounds(settings: DPFrankWolfeSettings) -> Bounds:
    return Bounds.of(settings.bounds.label_centre, settings.bounds.label_bound, 1)


def _public_of_party(settings: DPFrankWolfeSettings) -> Public:
    own = settings.required_party()
    dimension = SampleReader(settings.required_samples("a party").samples).dimension
    if dimension != settings.own_columns:
        raise ConfigurationError(
            f"samples.features: {dimension} columns, federation.columns says that {own!r} has "
            f"{settings.own_columns}"
        )
    return _public(settings)


def _public(settings: DPFrankWolfeSettings) -> Public:
    """Raises ConfigurationError where the settings promise what cannot be kept."""
    public = Public(settings)
    public.check()
    return public


def _secret(settings: DPFrankWolfeSettings) -> bytes:
    """The secret that noise is drawn from. Without a privacy promise it is one that anybody could compute."""
    privacy, own = settings.privacy, settings.required_party()
    if privacy.is_private and privacy.secret_file is None:
        raise ConfigurationError(
            "privacy.secret_file is missing: noise that others could compute hides nothing"
        )
    if privacy.is_private and privacy.secret_file is not None:
        return read_secret(privacy.secret_file, "privacy.secret_file")
    name = repr(("dp-frank-wolfe", settings.federation.name, settings.federation.seed, own))
    return hashlib.sha256(name.encode()).digest()


# ---- the server


def _build_server(settings: DPFrankWolfeSettings) -> PartitionedRole[ServerTask]:
    public = _public(settings)
    # The server goes on without a party that does not answer in time. If no party does, the server is in
    # trouble.
    return _member(settings, lambda outbox: ServerTask(public, outbox), 2 * settings.window.patience_seconds)


# ---- channels and topics


def _table(settings: DPFrankWolfeSettings) -> ChannelTable:
    """The channels of DP Frank-Wolfe. All entities are rows of one table, so each topic but the users' has
    one partition."""
    own = SERVER if settings.role.kind == SERVER else settings.required_party()
    peers = dict.fromkeys(settings.federation.parties, PARTY)
    if own == SERVER:
        return ChannelTable(own, _shared_channels(settings), peers)
    ledger = _of_one_table(
        name="ledger",
        links={(own, own): f"{settings.ledger_name}.ledger"},
        state=True,
        lasting=True,
        caution=_LEDGER,
    )
    rows = [*_users_channels(settings, own), *_shared_channels(settings), ledger]
    return ChannelTable(own, rows, peers)


def _shared_channels(settings: DPFrankWolfeSettings) -> list[Channel]:
    """The channels between server and parties, and the server's to users."""
    federation, serving = settings.federation, settings.serving.mode
    decode = decoded_in_fragments(codec(settings.message_bytes).read)
    rows = [
        _of_one_table(
            name="releases",
            links={(party, SERVER): f"{federation.name}.{party}.releases" for party in federation.parties},
            from_each=True,
            decode=decode,
            claimed_sender=lambda message: message.sender,
            makes_room=True,
            placed=True,
            caution=_EXACT if serving == "exact" else "",
        ),
        _of_one_table(
            name="asks",
            links={(SERVER, party): f"{federation.name}.{party}.asks" for party in federation.parties},
            to_each=True,
            decode=decode,
            makes_room=True,
            placed=True,
        ),
        Channel(
            name="model", links={(SERVER, USER): f"{federation.name}.model"}, compacted=True, signed=True
        ),
    ]
    if serving != "off":
        rows.append(predictions_channel(settings.predictions, settings.predictions_topic, SERVER))
    return rows


def _users_channels(settings: DPFrankWolfeSettings, own: str) -> list[Channel]:
    """The channels from the users of a party."""
    samples, labels = settings.required_samples("a party"), settings.required_labels("a party")
    reader, label_reader = SampleReader(samples.samples), LabelReader(labels, None)
    bounds, label_bounds = _bounds(settings), _label_bounds(settings)
    from_user = partial(_of_one_table, caution=_OWN)
    return [
        from_user(
            name="samples",
            links={(USER, own): samples.topic},
            decode=readable_sample(reader),
            strict=[reader.decode, *samples_within(reader, samples.samples.input_names, bounds)],
        ),
        from_user(
            name="labels",
            links={(USER, own): labels.topic},
            decode=readable_label(label_reader),
            strict=[label_reader.decode, label_within(label_reader, labels.label, label_bounds)],
        ),
    ]


_EXACT = (
    'with serving.mode = "exact" whoever reads it can solve for the party\'s columns: grant Read to nobody '
    "but the server"
)
_of_one_table = partial(Channel, partitions=1, reason="for all entities are rows of one table")
_OWN = (
    "rows or labels in plain numbers, which epsilon does not cover: labels are for the parties, all else for "
    "this party alone"
)
_LEDGER = (
    "all releases, by entity: grant Read and Write only to this party; it belongs to the data and outlives "
    "the federation, so never delete it"
)


# A release that knows layout 1 would go on with a centred window under another plan, and has no means or
# intercepts. One that knows layout 2 would take the label's sum, which counts several times, for one that
# counts once, and does not number announced entities.
_LAYOUT = 3

_kind = partial(
    RoleKind[DPFrankWolfeSettings],
    settings=DPFrankWolfeSettings,
    table=_table,
    state_settings=partial(own_sections, layout=_LAYOUT),
)

ROLES = by_name(
    _kind(
        name=PARTY,
        build=_build_party,
        state=PARTY_STATE,
        metrics=metrics_of(MemberCounts, PartyMetrics),
    ),
    _kind(
        name=SERVER,
        build=_build_server,
        state=SERVER_STATE,
        metrics=metrics_of(MemberCounts, ServerMetrics),
    ),
)
