"""The dashboard of kernel federations: loss, lag, abandoned rounds, what is forgotten, what is broken."""

from streamfl.fdskl.metrics import ActiveMetrics, PartyMetrics
from streamfl.monitoring.dashboard import Dashboard, Panel, Query, growth, rate, series
from streamfl.monitoring.entity_panels import loss_tile
from streamfl.monitoring.worker_panels import (
    by_worker,
    lag_tile,
    refused_tile,
    samples_tile,
    worker_panels,
    workers_tile,
)

__all__ = ["DASHBOARD", "DASHBOARDS"]

TILES = (
    workers_tile(),
    samples_tile(width=3),
    loss_tile(
        "If the loss rises for long: the stream has changed faster than learning.window and learning.sweeps "
        "forget."
    ),
    Panel(
        "Regret per sample now",
        "Loss of the model's predictions minus that of each partition's best constant in hindsight, per "
        "label, over the whole lifetime. Predictions of version 0, which has learnt nothing, do not count.",
        "short",
        (
            Query(
                f"sum({series(ActiveMetrics.regret)}) / (sum({series(ActiveMetrics.lifetime_labels)}) > 0)",
                "regret",
            ),
        ),
        minimum=None,
        kind="stat",
        width=3,
        remedy="If it is above 0 after many labels: a constant would be as good. Check whether a party's "
        "columns are missing.",
        nothing="no labels",
    ),
    Panel(
        "Rounds given up",
        "Rounds that were given up, in the time range. They are repeated.",
        "none",
        (Query(f"sum({growth(PartyMetrics.abandoned_rounds)})", "rounds"),),
        kind="stat",
        width=3,
        remedy="If it grows: a party is slow or absent. Abandoned rounds, below, says why.",
        bad_from=10,
        nothing="0",
    ),
    refused_tile(width=3),
    lag_tile(),
)

DASHBOARD = Dashboard(
    name="kernels",
    uid="streamfl-kernels",
    title="streamfl: kernel federation",
    system="fdskl",
    rows=(
        TILES,
        (
            Panel(
                "Loss before the label",
                "Mean loss of the predictions made before the label, over the last minutes. It should fall; "
                "if it rises, the stream has changed faster than learning.window and learning.sweeps forget.",
                "short",
                (
                    Query(
                        f"sum({rate(ActiveMetrics.loss_sum)}) / sum({rate(ActiveMetrics.scored)})",
                        "all partitions",
                    ),
                ),
                minimum=None,
                remedy="If it rises and stays up: shorten learning.window or learning.sweeps, so that old "
                "samples count less.",
            ),
            Panel(
                "Accuracy before the label",
                "Share of those predictions that were correct. Empty with the square loss.",
                "percentunit",
                (
                    Query(
                        f"sum({rate(ActiveMetrics.right_predictions)}) / sum({rate(ActiveMetrics.scored)})",
                        "all partitions",
                    ),
                ),
                maximum=1,
                remedy="If it is no better than the share of the more frequent label: the columns say "
                "nothing about it, or parties' entities do not match.",
            ),
            Panel(
                "Regret per sample",
                "Loss of the model's predictions minus that of each partition's best constant in hindsight, "
                "per label, over the federation's lifetime. Below 0 the model is better than a constant; it "
                "should fall. Predictions of version 0, which has learnt nothing, do not count.",
                "short",
                (
                    Query(
                        f"sum({series(ActiveMetrics.regret)}) / sum({series(ActiveMetrics.lifetime_labels)})",
                        "all partitions",
                    ),
                ),
                minimum=None,
                remedy="If it is above 0 after many labels: the columns say little about the label, or a "
                "party's are missing. A constant would be as good.",
            ),
        ),
        (
            Panel(
                "Predictions a second",
                "Predictions made, labels that came, and labels of entities that had been predicted.",
                "ops",
                (
                    Query(f"sum({rate(ActiveMetrics.predictions)})", "predictions"),
                    Query(f"sum({rate(ActiveMetrics.labels)})", "labels"),
                    Query(f"sum({rate(ActiveMetrics.scored)})", "scored"),
                ),
                remedy="If predictions fall behind: a party is absent, and predictions need all parties. If "
                "few labels are scored: their keys differ from the entities'.",
            ),
            Panel(
                "Iterations a second",
                "Iterations of learning at the active party.",
                "ops",
                (Query(f"sum({rate(ActiveMetrics.iterations)})", "all partitions"),),
                remedy="If it does not change while labels come: a party is absent, or too few entities have "
                "both columns and a label.",
            ),
        ),
        (
            Panel(
                "Rounds a second by party",
                "Rounds that the active party announced, and those in which each party took part. An absent "
                "party is missing or at 0, and nothing is learnt or predicted without it.",
                "ops",
                (
                    Query(f"sum({rate(ActiveMetrics.rounds_announced)})", "announced"),
                    by_worker(rate(PartyMetrics.rounds), "took part"),
                ),
                remedy="If a party is at 0: start it again. Until then rounds are given up and repeated.",
            ),
            Panel(
                "Abandoned rounds",
                "Rounds that were given up and repeated: too slow (timeout), a party restarted "
                "(incarnation), masks did not cancel (masks), or too many at once (displaced). masks means "
                "that a message was changed on its way, or that members' configurations differ.",
                "ops",
                (by_worker(rate(PartyMetrics.abandoned_rounds), label="reason"),),
                remedy="If timeout: look at the slowest party's processor and lag. If masks: compare the "
                "members' configurations, and check who may write to their topics.",
            ),
            Panel(
                "Bytes of sums a second",
                "Bytes of masked sums that each party sends.",
                "Bps",
                (by_worker(rate(PartyMetrics.sums_sent_bytes)),),
                remedy="If a party sends none while rounds continue: the others refuse its messages. Look at "
                "their dead letters.",
            ),
        ),
        (
            Panel(
                "Random features",
                "Features that are kept, and those that were dropped for newer ones since the model began.",
                "short",
                (
                    Query(f"max({series(ActiveMetrics.features)})", "kept"),
                    Query(f"max({series(ActiveMetrics.features_dropped)})", "dropped"),
                ),
                remedy="If dropped grows fast: features are dropped before they have learnt much. Raise "
                "learning.features_limit or learning.sweeps.",
            ),
            Panel(
                "Labelled entities",
                "Entities that are learnt from, and those left out because a party forgot their columns: "
                "raise its alignment.expiry_seconds.",
                "short",
                (
                    Query(f"sum({series(ActiveMetrics.labelled_entities)})", "learnt from"),
                    Query(f"sum({rate(ActiveMetrics.rows_dropped)})", "left out a second"),
                ),
                remedy="If many are left out: raise that party's alignment.expiry_seconds, so that it keeps "
                "columns as long as labels need.",
            ),
            Panel(
                "Incomplete entities",
                "Labelled entities that the active party's first iteration still waits for. 0 once there is "
                "a model.",
                "short",
                (by_worker(series(PartyMetrics.missing_entities)),),
                remedy="If it stays above 0 while labels come: keys of labels and samples differ, or samples "
                "do not come.",
            ),
        ),
        (
            Panel(
                "Waiting",
                "Pending predictions, and open rounds at each party. Both should return to zero.",
                "short",
                (
                    Query(f"sum({series(ActiveMetrics.awaited_predictions)})", "predictions"),
                    by_worker(series(PartyMetrics.pending_rounds), "rounds"),
                ),
                remedy="If it only grows: more comes than the slowest party can answer. Look for the party "
                "with open rounds.",
            ),
            Panel(
                "Missing columns",
                "Requested entities that a party does not know, so that the mean was used. Entities that "
                "have released privacy.features_per_entity features are among these. Also entities whose new "
                "columns came after the request.",
                "ops",
                (
                    by_worker(rate(PartyMetrics.imputed), "mean used"),
                    by_worker(rate(PartyMetrics.spent_entities), "limit reached"),
                    by_worker(rate(PartyMetrics.revisions_sent), "came later"),
                ),
                remedy="If the mean is used often: that party's samples come late or not at all, or its keys "
                "differ. If many entities have reached the limit: ask the active party why it "
                "requests this many features.",
            ),
            Panel(
                "Entities forgotten",
                "Columns that a party forgot; at the active party also entities without a label, labels "
                "without columns, and entries that were dropped for newer ones.",
                "ops",
                (
                    by_worker(rate(PartyMetrics.forgotten_entities), "columns", label="reason"),
                    Query(
                        f"sum by (reason) ({rate(ActiveMetrics.forgotten_forecasts)})",
                        "predictions, {{reason}}",
                    ),
                ),
                remedy="If no_label although labels come: keys differ, or labels take longer than "
                "alignment.expiry_seconds.",
            ),
        ),
        worker_panels(),
    ),
    description="Whether an FDSKL federation learns: loss, regret, rounds, and which party is behind.",
)
DASHBOARDS = (DASHBOARD,)
