"""What to watch of quasi-Newton federations: where a training is, its loss, what encryption costs, what is refused."""

from streamfl.dashboard import Dashboard, Panel, Query, rate, series

__all__ = ["DASHBOARD"]

BY_MEMBER = "{{job}} {{instance}}"


def of_coordinators(query: str) -> str:
    """Without other roles, which have a metric of the same name: coordinators alone have a loss by epoch."""
    return f"{query} and on (job, instance) {series('epoch')}"


def of_members(query: str) -> str:
    """Without other roles, which have a metric of the same name."""
    return f"{query} and on (job, instance) {series('phase')}"


def of_scoring(query: str) -> str:
    """Without other roles, which have a metric of the same name, and without coordinators."""
    return f"{query} and on (job, instance) {series('model_version')}"


DASHBOARD = Dashboard(
    name="scorecard",
    uid="streamfl-scorecard",
    title="streamfl: quasi-Newton federation",
    jobs_with="ciphertexts_sent_total",
    rows=(
        (
            Panel(
                "Loss",
                "Mean of Taylor's loss over the latest epoch, before each batch's step. It should fall and then stay; a "
                "training is "
                "over when two epochs differ by less than learning.tolerance.",
                "short",
                (Query(of_coordinators(series("loss")), BY_MEMBER),),
                minimum=None,
            ),
            Panel(
                "Trainings",
                "Trainings that a model came of, and those that came to nothing, at each member. The log of the member that "
                "ended one "
                "says why.",
                "short",
                (
                    Query(f"sum by (job, instance) ({series('trainings_total')})", f"with a model, {BY_MEMBER}"),
                    Query(f"sum by (job, instance) ({series('failed_trainings_total')})", f"in vain, {BY_MEMBER}"),
                ),
            ),
            Panel(
                "Phase",
                "Where each member is. Party: 0 waits for entities, 1 is ready, 2 compares entities, 3 waits for vectors, 4 for"
                " what is "
                "decrypted, 5 for inner products, 6 for the decision, 7 has learnt, 8 has failed. Coordinator: 0 waits for "
                "parties, 1 "
                "they compare entities, 2 in a round, 3 has ended, 4 has failed.",
                "short",
                (Query(f"max by (job, instance) ({series('phase')})", BY_MEMBER),),
            ),
        ),
        (
            Panel(
                "Iterations a second",
                "Steps that each member took. Standing still while a training is under way, with one phase for long, means that "
                "somebody is away.",
                "ops",
                (Query(f"sum by (job, instance) ({of_members(rate('iterations_total'))})", BY_MEMBER),),
            ),
            Panel(
                "Ciphertexts of an iteration",
                "Ciphertexts, or the numbers in their place, that each member sent in its latest whole iteration. They follow from "
                "batch, columns and key alone.",
                "short",
                (Query(f"max by (job, instance) ({series('iteration_ciphertexts')})", BY_MEMBER),),
            ),
            Panel(
                "Bytes sent a second",
                "Bytes of messages to other members.",
                "Bps",
                (Query(f"sum by (job, instance) ({of_members(rate('bytes_sent_total'))})", BY_MEMBER),),
            ),
        ),
        (
            Panel(
                "Entities",
                "Records of columns and labels taken a second, entities that were forgotten by age or gave way, and batches "
                "that did.",
                "ops",
                (
                    Query(f"sum by (job, instance) ({of_members(rate('samples_total'))})", f"columns, {BY_MEMBER}"),
                    Query(f"sum by (job, instance) ({of_members(rate('expired_entities_total'))})", f"forgotten, {BY_MEMBER}"),
                    Query(f"sum by (job, instance) ({rate('displaced_entities_total')})", f"gave way, {BY_MEMBER}"),
                    Query(f"sum by (job, instance) ({rate('expired_batches_total')})", f"batches, {BY_MEMBER}"),
                ),
            ),
            Panel(
                "Decryptions",
                "Vectors that the coordinator opened: one for each party and round, and one sum. Refused ones should stay 0: a "
                "party "
                "asked for a second decryption in one round.",
                "ops",
                (
                    Query(f"sum by (job, instance) ({rate('decryptions_total')})", f"opened, {BY_MEMBER}"),
                    Query(f"sum by (job, instance) ({rate('refused_decryptions_total')})", f"refused, {BY_MEMBER}"),
                ),
            ),
            Panel(
                "Messages that came again",
                "Messages that came again or too late, which changes nothing, and alignments that were refused.",
                "ops",
                (
                    Query(f"sum by (job, instance) ({of_members(rate('repeated_messages_total'))})", f"again, {BY_MEMBER}"),
                    Query(f"sum by (job, instance) ({rate('refused_alignments_total')})", f"alignments, {BY_MEMBER}"),
                ),
            ),
        ),
        (
            Panel(
                "Predictions",
                "Predictions that the guest published a second, entities that a host told its part of the output of, and entities "
                "without a score, for their part of it is beyond the bound or unknown.",
                "ops",
                (
                    Query(f"sum by (job, instance) ({of_scoring(rate('predictions_total'))})", f"published, {BY_MEMBER}"),
                    Query(f"sum by (job, instance) ({of_scoring(rate('answered_entities_total'))})", f"answered, {BY_MEMBER}"),
                    Query(f"sum by (job, instance) ({of_scoring(rate('unscored_entities_total'))})", f"no score, {BY_MEMBER}"),
                ),
            ),
            Panel(
                "Model on held-out entities",
                "Area under the curve, and the distance of Kolmogorov and Smirnov, on entities that the guest's present model has "
                "scored and not learnt from. It has them once entities of both labels are there.",
                "short",
                (
                    Query(f"max by (job, instance) ({series('held_out_auc')})", f"AUC, {BY_MEMBER}"),
                    Query(f"max by (job, instance) ({series('held_out_ks')})", f"KS, {BY_MEMBER}"),
                ),
                maximum=1,
            ),
            Panel(
                "Versions of the model",
                "The training that each party's present model came from, and versions that a host may still tell points of. With "
                "none left nobody is scored with a newer model: each version shows the guest more of the host's columns.",
                "short",
                (
                    Query(f"max by (job, instance) ({of_members(series('model_version'))})", f"present, {BY_MEMBER}"),
                    Query(f"min by (job, instance) ({series('model_versions_left')})", f"left, {BY_MEMBER}"),
                ),
            ),
        ),
        (
            Panel(
                "Dead letters",
                "Records that were refused and went to the dead-letter topics, by reason. It should be empty.",
                "ops",
                (Query(f"sum by (job, instance, reason) ({rate('dead_letters_total')})", "{{job}} {{instance}} {{reason}}"),),
            ),
            Panel(
                "Consumer lag",
                "Records not read yet, by topic and partition. It should return to zero.",
                "short",
                (Query(f"sum by (topic, partition) ({series('consumer_lag_records')})", "{{topic}} {{partition}}"),),
            ),
            Panel(
                "Workers up",
                "1 while Prometheus reaches a worker, and the commits a second of each, which show that it goes round.",
                "short",
                (
                    Query('min by (job, instance) (up{job=~"$job"})', f"up, {BY_MEMBER}"),
                    Query(f"sum by (job, instance) ({rate('commits_total')})", f"commits a second, {BY_MEMBER}"),
                ),
            ),
        ),
    ),
)
