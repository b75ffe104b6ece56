"""What to watch of federations of clients with samples of their own: error, regret, speed, upload and lag."""

from streamfl.dashboard import Dashboard, Panel, Query, rate, series

__all__ = ["DASHBOARD"]

LABELS = series("labels_total")
JUDGED = series("challenger_labels_total")


def weighted_by_labels(figure: str) -> str:
    """The mean of a worker's figure over all workers: one with more labels counts more."""
    return f"sum({series(figure)} * on (job, instance) {LABELS}) / sum({LABELS})"


DASHBOARD = Dashboard(
    name="federation",
    uid="streamfl-federation",
    title="streamfl: federation overview",
    jobs_with="model_version",
    all_jobs=".+",
    rows=(
        (
            Panel(
                "Mean squared error",
                "Of the predictions against the labels that have arrived, labels scaled to 0..1. Running: since the workers' "
                "first label. Windowed: the last labels only. Weighted by each worker's labels.",
                "short",
                (
                    Query(weighted_by_labels("mse"), "running"),
                    Query(weighted_by_labels("mse_windowed"), "windowed"),
                ),
            ),
            Panel(
                "Regret per sample",
                "Loss of the prediction minus the loss of the best single kernel in hindsight, per label. It should fall "
                "towards zero.",
                "short",
                (
                    Query(f"sum({series('regret')}) / sum({series('labels_total')})", "all workers"),
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
                (Query(f"sum by (topic, partition) ({series('consumer_lag_records')})", "{{topic}}-{{partition}}"),),
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
                "Of the last 1000 labels of each worker, labels scaled to 0..1. Challengers learn on each client's own "
                "samples, where [challengers] names some, and begin anew when a worker starts. Weighted by labels.",
                "short",
                (
                    Query(weighted_by_labels("mse_windowed"), "federation"),
                    Query(
                        f"sum by (model) ({series('challenger_mse_windowed')} * on (job, instance, model) {JUDGED})"
                        f" / sum by (model) ({JUDGED})",
                        "{{model}}",
                    ),
                ),
                width=16,
            ),
        ),
    ),
)
