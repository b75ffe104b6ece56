"""The server's dashboard: whether the model goes on, which clients send updates, and who writes without
permission."""

from streamfl.contract.measurement import Metric
from streamfl.monitoring.dashboard import Dashboard, Panel, Query, growth, rate, series
from streamfl.monitoring.worker_panels import lag_tile, refused_tile, worker_panels, workers_tile
from streamfl.pofmkl.metrics import ServerMetrics

__all__ = ["SERVER"]

ROLE = "pofmkl-server"
STRANGE = (ServerMetrics.model_repairs, ServerMetrics.superseded_updates, ServerMetrics.bounded_parameters)


def of_all(counter: Metric, what: str) -> Query:
    """One line for all workers together, a second."""
    return Query(f"sum({rate(counter, ROLE)})", what)


TILES = (
    workers_tile(),
    Panel(
        "Model version",
        "The newest version of the model.",
        "none",
        (Query(f"max({series(ServerMetrics.model_version, ROLE)})", "version"),),
        kind="stat",
        width=4,
        remedy="If it does not change while clients learn: /readyz of the server's workers says why.",
        nothing="no model",
    ),
    Panel(
        "Updates a second now",
        "Updates a second of clients that went into the model.",
        "ops",
        (Query(f"sum({rate(ServerMetrics.updates_applied, ROLE)})", "updates"),),
        kind="stat",
        width=4,
        remedy="If it is 0 while clients send: the panel of ignored updates says why.",
        nothing="none",
    ),
    Panel(
        "Signs of a stranger, total",
        "In the time range: repairs of the model's topic, updates that show two senders for one client, and "
        "parameters that became far too large.",
        "none",
        (Query(" + ".join(f"sum({growth(counter, ROLE)})" for counter in STRANGE), "times"),),
        kind="stat",
        width=4,
        remedy="If it is above 0: somebody without the right writes, two processes have one client, or the "
        "learning rate is far too large. Signs of a stranger, below, says which.",
        bad_from=0.5,
        nothing="0",
    ),
    refused_tile(),
    lag_tile(),
)

UPDATES = (
    Panel(
        "Updates into the model",
        "Updates that went into the model a second, by worker.",
        "ops",
        (Query(f"sum by (instance) ({rate(ServerMetrics.updates_applied, ROLE)})", "{{instance}}"),),
        remedy="If one worker has none: its share of the kernels gets no updates. Check whether it has a "
        "partition.",
    ),
    Panel(
        "Ignored updates",
        "Updates a second without effect, by reason: late, repeated, or empty.",
        "ops",
        (Query(f"sum by (reason) ({rate(ServerMetrics.ignored_updates, ROLE)})", "{{reason}}"),),
        remedy="If many are late: clients are slower than the rounds, so give a round more time.",
    ),
    Panel(
        "Staleness of updates",
        "Number of model versions between the one that an update was made with and the current one, for the "
        "latest update that each worker of the server accepted.",
        "short",
        (Query(f"max by (instance) ({series(ServerMetrics.staleness, ROLE)})", "{{instance}}"),),
        remedy="If it is in the thousands: clients learn from an old model. Look at their lag on the model's "
        "topic.",
    ),
)

ROUNDS = (
    Panel(
        "Known clients",
        "Clients that the server knows, and clients with an update in the open round.",
        "short",
        (
            Query(f"max({series(ServerMetrics.clients, ROLE)})", "known"),
            Query(f"max({series(ServerMetrics.round_waiting, ROLE)})", "with an update in this round"),
        ),
        remedy="If few have an update in each round: the others are absent, or their updates are refused.",
    ),
    Panel(
        "Rounds without all clients",
        "Rounds a second that were closed without every client, and clients that were forgotten to make "
        "room.",
        "ops",
        (
            of_all(ServerMetrics.timed_out_rounds, "closed without all"),
            of_all(ServerMetrics.expired_clients, "clients forgotten"),
        ),
        remedy="If it is every round: a client is gone for good, or rounds are too short. Raise "
        "federation.clients if clients are forgotten.",
    ),
    Panel(
        "Signs of a stranger",
        "Updates a second with a number below an earlier one, so that two processes send for one client; "
        "repairs of the model's topic; parameters that were shortened.",
        "ops",
        (
            of_all(ServerMetrics.superseded_updates, "two senders for one"),
            of_all(ServerMetrics.model_repairs, "model repaired"),
            of_all(ServerMetrics.bounded_parameters, "parameters shortened"),
        ),
        remedy="If there are repairs: let only the server write to the model's topic. If there are two "
        "senders for one: stop one of them. If parameters are shortened: lower the learning rate.",
    ),
)

SERVER = Dashboard(
    name="federation-server",
    uid="streamfl-federation-server",
    title="streamfl: federation, server",
    system="pofmkl",
    rows=(TILES, UPDATES, ROUNDS, worker_panels()),
    description="The server of a POF-MKL federation: new versions of the model, known clients, and "
    "unauthorised writers.",
)
