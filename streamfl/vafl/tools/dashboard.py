"""The dashboard of vertical federations: loss, parties that are behind, forgotten entities, privacy budgets,
faults."""

from streamfl.monitoring.dashboard import Dashboard, Panel, Query, growth, mean_over_time, rate, series
from streamfl.monitoring.entity_panels import loss_tile
from streamfl.monitoring.worker_panels import (
    by_worker,
    lag_tile,
    refused_tile,
    samples_tile,
    worker_panels,
    workers_tile,
)
from streamfl.vafl.metrics import CoordinatorMetrics, PartyMetrics, ScoreMetrics
from streamfl.vafl.tools.privacy_dashboard import BUDGET_USED, PRIVACY

__all__ = ["DASHBOARD", "DASHBOARDS"]

PARTY = "vafl-party"
COORDINATOR = "vafl-coordinator"

TILES = (
    workers_tile(),
    samples_tile(PARTY, width=3),
    loss_tile(
        "If the loss rises for long: the stream has changed, or a party is absent. Look at embeddings by "
        "party."
    ),
    Panel(
        "Learnt below the quorum",
        "Entities that were learnt from although fewer parties than learning.quorum had sent them, in the "
        "time range.",
        "none",
        (Query(f"sum({growth(CoordinatorMetrics.learnt_below_quorum)})", "entities"),),
        kind="stat",
        width=3,
        remedy="If it grows: a party is late or absent. Look at embeddings by party.",
        bad_from=0.5,
        nothing="0",
    ),
    BUDGET_USED,
    refused_tile(width=3),
    lag_tile(width=3),
)

DASHBOARD = Dashboard(
    name="vertical",
    uid="streamfl-vertical",
    title="streamfl: vertical federation",
    system="vafl",
    rows=(
        TILES,
        (
            Panel(
                "Incomplete entities",
                "Entities whose gradient a party's first step waits for. At the coordinator: entities that "
                "are not learnt from, because they have no label, or too few parties have sent them.",
                "short",
                (
                    by_worker(series(PartyMetrics.missing_entities, PARTY), "gradient"),
                    Query(
                        "sum by (group, instance, reason) "
                        f"({series(CoordinatorMetrics.lacking_entities, COORDINATOR)})",
                        "{{reason}}, {{group}} {{instance}}",
                    ),
                ),
                remedy="If many lack a label or embeddings and nothing is learnt: keys of labels and samples "
                "differ, or a party is absent. Without labels a party waits for gradients too.",
            ),
        ),
        (
            Panel(
                "Loss before the label",
                "Mean loss of the predictions made before the label, over the latest interval; with the "
                "square loss on labels scaled to 0..1. It should fall.",
                "short",
                (
                    Query(mean_over_time(ScoreMetrics.loss_sum, ScoreMetrics.scored), "all workers"),
                    Query(series(ScoreMetrics.loss_windowed), "the last 1000 labels, {{group}} {{instance}}"),
                ),
                minimum=None,
                remedy="If it rises: the stream has changed, or a party is absent, so look at embeddings by "
                "party. If it never falls: raise or lower the learning rates.",
            ),
            Panel(
                "Accuracy before the label",
                "Share of those predictions that were correct. Empty with the square loss.",
                "percentunit",
                (
                    Query(mean_over_time(ScoreMetrics.right_predictions, ScoreMetrics.scored), "all workers"),
                    Query(series(ScoreMetrics.accuracy), "the last 1000 labels, {{group}} {{instance}}"),
                ),
                maximum=1,
                remedy="If it is no better than the share of the more frequent label: the columns say "
                "nothing about it, or keys of parties do not match.",
            ),
            Panel(
                "Predictions a second",
                "Predicted entities, predictions repeated with a further embedding, labels, entities that "
                "were learnt from, and those among them that fewer parties than learning.quorum had sent in "
                "time.",
                "ops",
                (
                    Query(f"sum({rate(CoordinatorMetrics.predictions, COORDINATOR)})", "first predictions"),
                    Query(f"sum({rate(CoordinatorMetrics.revised_predictions)})", "revised predictions"),
                    Query(f"sum({rate(CoordinatorMetrics.labels, COORDINATOR)})", "labels"),
                    Query(f"sum({rate(CoordinatorMetrics.learnt)})", "learnt from"),
                    Query(
                        f"sum({rate(CoordinatorMetrics.learnt_below_quorum)})", "learnt from below the quorum"
                    ),
                ),
                remedy="If labels come but little is learnt: fewer parties than learning.quorum send the "
                "entities. Look for the party that is behind.",
            ),
        ),
        (
            Panel(
                "Embeddings a second by party",
                "Embeddings that each party's workers send, and those that the coordinator accepts. An "
                "absent party is missing or at 0; the others continue.",
                "ops",
                (
                    by_worker(rate(PartyMetrics.embeddings, PARTY), "sent"),
                    Query(
                        f"sum({rate(CoordinatorMetrics.embeddings, COORDINATOR)})",
                        "accepted by the coordinator",
                    ),
                ),
                remedy="If a party is at 0: start it again. The others continue without it.",
            ),
            Panel(
                "Steps a second",
                "Steps of each party's parameters, and of the head's at the coordinator.",
                "ops",
                (by_worker(rate(CoordinatorMetrics.steps)),),
                remedy="If a party takes no steps while gradients come: its budget is spent, or its steps "
                "are refused.",
            ),
            Panel(
                "Refused steps",
                "Steps not taken because a parameter would have become infinite: inputs or the learning rate "
                "are too large.",
                "ops",
                (by_worker(rate(CoordinatorMetrics.refused_steps)),),
                remedy="If it is above 0: scale the inputs, or lower the learning rate of that member.",
            ),
        ),
        (
            Panel(
                "Staleness in steps",
                "Steps that a party took since it made an embedding that a gradient was computed from, its "
                "own or another party's: the mean over the latest interval, and the maximum of the last "
                "1000.",
                "short",
                (
                    Query(
                        mean_over_time(
                            CoordinatorMetrics.staleness_steps, CoordinatorMetrics.aged_embeddings
                        ),
                        "mean",
                    ),
                    Query(f"max({series(CoordinatorMetrics.staleness_largest_windowed)})", "largest"),
                ),
                remedy="If it is high: parties learn faster than the coordinator answers. Lower "
                "learning.max_staleness, or learning.in_flight at the party.",
            ),
            Panel(
                "Newer embeddings asked for",
                "Requests because of learning.max_staleness, the answers of each party, requests without an "
                "answer in time, and embeddings that were too old to be used and were not sent again.",
                "ops",
                (
                    Query(f"sum({rate(CoordinatorMetrics.requests)})", "requests"),
                    by_worker(rate(PartyMetrics.embeddings_again), "answers"),
                    Query(f"sum({rate(CoordinatorMetrics.silent_parties)})", "not answered"),
                    Query(f"sum({rate(CoordinatorMetrics.outdated_embeddings)})", "too old, not used"),
                ),
                remedy="If many are not answered: a party is absent or slow. If there are very many: "
                "learning.max_staleness is too small.",
            ),
            Panel(
                "Entities that wait",
                "At a party: entities without their gradient, and samples held back by learning.in_flight. "
                "At the coordinator: entities that are stored.",
                "short",
                (
                    by_worker(series(CoordinatorMetrics.entities), "entities"),
                    by_worker(series(PartyMetrics.waiting_samples, PARTY), "samples"),
                ),
                remedy="If it only grows: the coordinator is behind. Look at its lag, and start more "
                "workers.",
            ),
        ),
        (
            Panel(
                "Entities forgotten",
                "Entities that were forgotten without a gradient at a party, or before they were learnt from "
                "at the coordinator, by what never came. no_label although labels come means that keys "
                "differ or alignment.expiry_seconds is too short.",
                "ops",
                (by_worker(rate(CoordinatorMetrics.forgotten_entities), label="reason"),),
                remedy="If no_label although labels come: keys differ, or alignment.expiry_seconds is too "
                "short. If displaced: raise the limit.",
            ),
            Panel(
                "Ignored messages",
                "Embeddings and replies without effect: repeated, from before a restart, superseded, or for "
                "a forgotten entity. Also embeddings with a number below one that was accepted just before.",
                "ops",
                (
                    Query(
                        f"sum by (reason) ({rate(CoordinatorMetrics.ignored_embeddings)})",
                        "embeddings, {{reason}}",
                    ),
                    Query(f"sum by (reason) ({rate(PartyMetrics.ignored_replies)})", "replies, {{reason}}"),
                    Query(f"sum({rate(CoordinatorMetrics.duplicate_labels, COORDINATOR)})", "labels"),
                    Query(
                        f"sum({rate(CoordinatorMetrics.superseded_embeddings, COORDINATOR)})",
                        "two senders for one party",
                    ),
                ),
                remedy="If there are two senders for one party: stop one of them. A few of the others after "
                "a restart are normal.",
            ),
            Panel(
                "Gradients a second",
                "Gradients that the coordinator sent, and those that each party learnt from.",
                "ops",
                (
                    Query(
                        f"sum({rate(CoordinatorMetrics.gradients, COORDINATOR)})", "sent by the coordinator"
                    ),
                    by_worker(rate(PartyMetrics.gradients, PARTY), "learnt from"),
                ),
                remedy="If more are sent than learnt from: a party forgets entities before their gradient "
                "comes. Raise its alignment.expiry_seconds.",
            ),
        ),
        worker_panels(),
    ),
    description="Whether a VAFL federation learns: loss, parties that are behind, and forgotten entities.",
)
DASHBOARDS = (DASHBOARD, PRIVACY)
