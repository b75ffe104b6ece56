"""What to watch of federations of clients with samples of their own: error, regret, speed, upload and lag."""

from streamfl.dashboard import Dashboard, Panel, Query, lag, mean_over_time, rate, series

__all__ = ["DASHBOARD"]

LIFETIME_LABELS = series("lifetime_labels")


DASHBOARD = Dashboard(
    name="federation",
    uid="streamfl-federation",
    title="streamfl: federation overview",
    system="pofmkl",
    rows=(
        (
            Panel(
                "Mean squared error",
                "Of the predictions against the labels that came, labels scaled to 0..1. Now: those of the latest interval. Whole "
                "life: of all clients, restarts included.",
                "short",
                (
                    Query(mean_over_time("squared_error_sum_total", "labels_total"), "now"),
                    Query(f"sum({series('lifetime_squared_error')}) / sum({LIFETIME_LABELS})", "whole life"),
                ),
            ),
            Panel(
                "Regret per sample",
                "Loss of the prediction minus the loss of the best single kernel in hindsight, per label. It should fall "
                "towards zero.",
                "short",
                (
                    Query(f"sum({series('regret')}) / sum({LIFETIME_LABELS})", "all workers"),
                    Query(series("regret_per_sample"), "{{instance}}"),
                ),
                minimum=None,
            ),
            Panel(
                "Samples a second",
                "Samples taken, predictions sent and labels learnt from.",
                "ops",
                (
                    Query(f"sum({rate('samples_total')})", "samples"),
                    Query(f"sum({rate('predictions_total')})", "predictions"),
                    Query(f"sum({rate('labels_total')})", "labels"),
                ),
            ),
        ),
        (
            Panel(
                "Consumer lag",
                "Records that wait in each partition. Kafka's control records count too, so under exactly_once it rests a "
                "little above zero.",
                "short",
                (Query(lag(), "{{group}} {{topic}}-{{partition}}"),),
            ),
            Panel(
                "Upload against budget",
                "Bytes of updates as encoded, keys, headers and framing included, and the bytes that the budget allowed in "
                "the same time.",
                "Bps",
                (
                    Query(f"sum({rate('update_bytes_total')})", "sent"),
                    Query(f"sum({rate('update_budget_bytes_total')})", "budget"),
                ),
            ),
            Panel(
                "Updates not sent",
                "Kernel updates that were computed and not sent, by reason. They are not sent later.",
                "ops",
                (Query(f"sum by (reason) ({rate('skipped_updates_total')})", "{{reason}}"),),
            ),
        ),
        (
            Panel(
                "Model version and staleness",
                "The newest model version that each worker holds, and how far behind the newest the last update or prediction was.",
                "short",
                (
                    Query(f"max by (instance) ({series('model_version')})", "version {{instance}}"),
                    Query(f"max by (instance) ({series('staleness')})", "staleness {{instance}}"),
                ),
            ),
            Panel(
                "Seconds a batch and a commit step",
                "Half, and 99 of 100, of the batches that a role computed and of the whole steps with their commits took less.",
                "s",
                (
                    Query(f"histogram_quantile(0.5, sum by (le) ({rate('batch_seconds_bucket')}))", "batch p50"),
                    Query(f"histogram_quantile(0.99, sum by (le) ({rate('batch_seconds_bucket')}))", "batch p99"),
                    Query(f"histogram_quantile(0.5, sum by (le) ({rate('step_seconds_bucket')}))", "step p50"),
                    Query(f"histogram_quantile(0.99, sum by (le) ({rate('step_seconds_bucket')}))", "step p99"),
                ),
            ),
            Panel(
                "Dead letters",
                "Records that could not be used, by reason. Each lies in the dead-letter topic with its origin in the headers.",
                "ops",
                (Query(f"sum by (reason) ({rate('dead_letters_total')})", "{{reason}}"),),
            ),
        ),
        (
            Panel(
                "Best kernel",
                "The kernel with the smallest total loss so far at each worker, by its number in the dictionary.",
                "short",
                (Query(series("best_kernel"), "{{instance}}"),),
                minimum=None,
            ),
            Panel(
                "MSE, federation against challengers",
                "Of the labels of the latest interval, labels scaled to 0..1. Challengers learn on each client's own samples, "
                "where [challengers] names some, and begin anew when a worker starts.",
                "short",
                (
                    Query(mean_over_time("squared_error_sum_total", "labels_total"), "federation"),
                    Query(
                        f"sum by (model) ({rate('challenger_squared_error_sum_total')})"
                        f" / sum by (model) ({rate('challenger_labels_total')})",
                        "{{model}}",
                    ),
                ),
                width=16,
            ),
        ),
    ),
)
