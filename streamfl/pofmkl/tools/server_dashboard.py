"""The server's dashboard: whether the model goes on, which clients send updates, and who writes without permission."""

from streamfl.monitoring.dashboard import Dashboard, Panel, Query, growth, rate, series
from streamfl.monitoring.worker_panels import lag_tile, refused_tile, worker_panels, workers_tile

__all__ = ["SERVER"]

ROLE = "pofmkl-server"
STRANGE = ("model_repairs_total", "superseded_updates_total", "bounded_parameters_total")


def of_all(counter: str, what: str) -> Query:
    """One line for all workers together, a second."""
    return Query(f"sum({rate(counter, ROLE)})", what)


TILES = (
    workers_tile(),
    Panel(
        "Model version",
        "The newest version of the model.",
        "none",
        (Query(f"max({series('model_version', ROLE)})", "version"),),
        kind="stat",
        width=4,
        remedy="If it stands still while clients learn: ask /readyz of the server's workers.",
        nothing="no model",
    ),
    Panel(
        "Updates a second now",
        "Updates of clients that went into the model, a second.",
        "ops",
        (Query(f"sum({rate('updates_applied_total', ROLE)})", "updates"),),
        kind="stat",
        width=4,
        remedy="If it is 0 while clients send: the panel of ignored updates says why none counts.",
        nothing="none",
    ),
    Panel(
        "What only a stranger does",
        "Over the time that is shown: repairs of the model's topic, updates by which two speak for one client, and parameters that "
        "had grown beyond all measure.",
        "none",
        (Query(" + ".join(f"sum({growth(counter, ROLE)})" for counter in STRANGE), "times"),),
        kind="stat",
        width=4,
        remedy="If it is above 0: somebody writes who should not, two processes have one client, or the learning rate is far "
        "too large. Signs of a stranger, below, says which.",
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
        (Query(f"sum by (instance) ({rate('updates_applied_total', ROLE)})", "{{instance}}"),),
        remedy="If one worker has none: its share of the kernels gets no updates. Look whether it has a partition.",
    ),
    Panel(
        "Ignored updates",
        "Updates that changed nothing, a second, by reason: late, come again, or empty.",
        "ops",
        (Query(f"sum by (reason) ({rate('ignored_updates_total', ROLE)})", "{{reason}}"),),
        remedy="If many are late: clients are slower than the rounds, so give a round more time.",
    ),
    Panel(
        "Staleness of updates",
        "How many versions the model had gone on since the one that an update was made with: of the latest update that each "
        "worker of the server took.",
        "short",
        (Query(f"max by (instance) ({series('staleness', ROLE)})", "{{instance}}"),),
        remedy="If it is in the thousands: clients learn from an old model. Look at their lag on the model's topic.",
    ),
)

ROUNDS = (
    Panel(
        "Clients heard of",
        "Clients that the server knows, and those that were heard in the open round.",
        "short",
        (
            Query(f"max({series('clients', ROLE)})", "known"),
            Query(f"max({series('round_waiting', ROLE)})", "heard in this round"),
        ),
        remedy="If few are heard in each round: the others are away, or their updates are refused.",
    ),
    Panel(
        "Rounds without all clients",
        "Rounds that were closed without every client, and clients that were forgotten to make room, a second.",
        "ops",
        (of_all("timed_out_rounds_total", "closed without all"), of_all("expired_clients_total", "clients forgotten")),
        remedy="If it is every round: a client is away for good, or rounds are too short. Raise federation.clients if clients are "
        "forgotten.",
    ),
    Panel(
        "Signs of a stranger",
        "A second: updates with a number below one heard before, so that two speak for one client; times that the model's "
        "topic was written anew; parameters that were shortened.",
        "ops",
        (
            of_all("superseded_updates_total", "two speak for one"),
            of_all("model_repairs_total", "model written anew"),
            of_all("bounded_parameters_total", "parameters shortened"),
        ),
        remedy="If there are repairs: take the right to write the model's topic from all but the server. If two speak for one: "
        "stop one of them. If parameters are shortened: lower the learning rate.",
    ),
)

SERVER = Dashboard(
    name="federation-server",
    uid="streamfl-federation-server",
    title="streamfl: federation, server",
    system="pofmkl",
    rows=(TILES, UPDATES, ROUNDS, worker_panels()),
    description="The server of a POF-MKL federation: whether the model goes on, whom it hears of, and who writes what they "
    "should not.",
)
