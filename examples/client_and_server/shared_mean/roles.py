"""The roles as ``[role] kind`` names them, their channels, and who takes part."""

from operator import attrgetter

from shared_mean.config import SharedMeanSettings
from shared_mean.learning import Client, ClientMetrics, Server, ServerMetrics
from shared_mean.messages import MODEL, UPDATE, Mean
from streamfl.contract.channel_table import USER, Channel, ChannelTable
from streamfl.records.samples import SampleReader
from streamfl.roles.client_role import client_state
from streamfl.roles.role_kind import RoleKind, by_name
from streamfl.simulation.clients import ClientMembers

CLIENT, SERVER = "shared-mean-client", "shared-mean-server"


def _table(settings: SharedMeanSettings) -> ChannelTable:
    name = settings.federation.name
    updates = Channel(
        name="updates",
        links={(CLIENT, SERVER): f"{name}.updates"},
        decode=UPDATE.read,
        partitions=1,
        reason="one server makes one mean of all",
        claimed_sender=attrgetter("client"),
    )
    model = Channel(
        name="model",
        links={(SERVER, CLIENT): f"{name}.model"},
        decode=MODEL.read,
        whole=True,
        compacted=True,
        signed=True,
    )
    predictions = Channel(name="predictions", links={(CLIENT, USER): settings.predictions_topic})
    samples = [] if settings.samples is None else [SampleReader(settings.samples).channel(CLIENT)]
    return ChannelTable(settings.role.kind, [*samples, updates, model, predictions])


ROLES = by_name(
    RoleKind(CLIENT, SharedMeanSettings, Client, _table, state=client_state(Mean), metrics=(ClientMetrics,)),
    RoleKind(SERVER, SharedMeanSettings, Server, _table, state=client_state(Mean), metrics=(ServerMetrics,)),
)
MEMBERS = ClientMembers(SharedMeanSettings, {"client": CLIENT, "server": SERVER})
