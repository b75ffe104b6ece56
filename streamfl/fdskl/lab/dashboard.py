"""What to watch of kernel federations: loss, who is behind, rounds that came to nothing, what is forgotten, what is broken."""

from streamfl.dashboard import Dashboard, Panel, Query, rate, series, worker_panels

__all__ = ["DASHBOARD"]


DASHBOARD = Dashboard(
    name="kernels",
    uid="streamfl-kernels",
    title="streamfl: kernel federation",
    system="fdskl",
    rows=(
        (
            Panel(
                "Loss before the label",
                "Mean loss of the predictions that were there when the label came, over the last minutes. It should fall; where "
                "it rises, the stream has changed faster than learning.window and learning.sweeps forget.",
                "short",
                (Query(f"sum({rate('loss_sum_total')}) / sum({rate('scored_total')})", "all partitions"),),
                minimum=None,
            ),
            Panel(
                "Accuracy before the label",
                "Share of those predictions that were right. Empty with the square loss.",
                "percentunit",
                (Query(f"sum({rate('right_predictions_total')}) / sum({rate('scored_total')})", "all partitions"),),
                maximum=1,
            ),
            Panel(
                "Regret per sample",
                "Loss of the predictions less that of the best constant of each partition in hindsight, by label, over the "
                "federation's whole life. Below 0 what was learnt is of use; it should fall.",
                "short",
                (Query(f"sum({series('regret')}) / sum({series('lifetime_labels')})", "all partitions"),),
                minimum=None,
            ),
        ),
        (
            Panel(
                "Predictions a second",
                "Predictions made, labels that came, and labels of entities that had been predicted.",
                "ops",
                (
                    Query(f"sum({rate('predictions_total')})", "predictions"),
                    Query(f"sum({rate('labels_total')})", "labels"),
                    Query(f"sum({rate('scored_total')})", "scored"),
                ),
            ),
            Panel(
                "Iterations a second",
                "Iterations of learning at the active party.",
                "ops",
                (Query(f"sum({rate('iterations_total')})", "all partitions"),),
            ),
        ),
        (
            Panel(
                "Rounds a second by party",
                "Rounds that the active party announced, and those that each party had a part in. A party that is away is missing "
                "or at 0, and nobody learns or predicts without it.",
                "ops",
                (
                    Query(f"sum({rate('rounds_announced_total')})", "announced"),
                    Query(f"sum by (group, instance) ({rate('rounds_total')})", "part in, {{group}} {{instance}}"),
                ),
            ),
            Panel(
                "Abandoned rounds",
                "Rounds given up, and asked again as new ones: too slow (timeout), a party began anew (incarnation), masks that "
                "did not cancel (masks), or too many at once (displaced). masks means that a message was changed on its way, or "
                "that members differ in their configuration.",
                "ops",
                (
                    Query(
                        f"sum by (group, instance, reason) ({rate('abandoned_rounds_total')})", "{{group}} {{instance}} {{reason}}"
                    ),
                ),
            ),
            Panel(
                "Bytes of sums a second",
                "Bytes of masked sums that each party sends.",
                "Bps",
                (Query(f"sum by (group, instance) ({rate('sums_sent_bytes_total')})", "{{group}} {{instance}}"),),
            ),
        ),
        (
            Panel(
                "Random features",
                "Features that are kept, and those that gave way to newer ones since the model began.",
                "short",
                (
                    Query(f"max({series('features')})", "kept"),
                    Query(f"max({series('features_dropped')})", "dropped"),
                ),
            ),
            Panel(
                "Labelled entities",
                "Entities that are learnt from, and those left out because a party forgot their columns: raise its "
                "alignment.expiry_seconds.",
                "short",
                (
                    Query(f"sum({series('labelled_entities')})", "learnt from"),
                    Query(f"sum({rate('rows_dropped_total')})", "left out a second"),
                ),
            ),
        ),
        (
            Panel(
                "Waiting",
                "Predictions that have to be made, and rounds under way at each party. Both should return to zero.",
                "short",
                (
                    Query(f"sum({series('awaited_predictions')})", "predictions"),
                    Query(f"sum by (group, instance) ({series('pending_rounds')})", "rounds, {{group}} {{instance}}"),
                ),
            ),
            Panel(
                "Columns that were not there",
                "Entities that a party was asked for and does not know: their mean stood in. And entities of which new columns "
                "came after they had been asked for.",
                "ops",
                (
                    Query(f"sum by (group, instance) ({rate('imputed_total')})", "mean stood in, {{group}} {{instance}}"),
                    Query(f"sum by (group, instance) ({rate('revisions_sent_total')})", "came later, {{group}} {{instance}}"),
                ),
            ),
            Panel(
                "Entities forgotten",
                "Columns that a party forgot, and at the active party entities without a label, labels without columns, and what "
                "gave way to others.",
                "ops",
                (
                    Query(
                        f"sum by (group, instance, reason) ({rate('forgotten_entities_total')})",
                        "columns, {{group}} {{instance}} {{reason}}",
                    ),
                    Query(f"sum by (reason) ({rate('forgotten_forecasts_total')})", "predictions, {{reason}}"),
                ),
            ),
        ),
        worker_panels(),
    ),
)
