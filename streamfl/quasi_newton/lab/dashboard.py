"""What to watch of quasi-Newton federations: where a training is, its loss, what encryption costs, what is refused."""

from streamfl.dashboard import Dashboard, Panel, Query, rate, series, worker_panels

__all__ = ["DASHBOARD"]

SCORING = ("quasi-newton-guest", "quasi-newton-host")
COORDINATOR = "quasi-newton-coordinator"
BY_MEMBER = "{{group}} {{instance}}"


def by_member(query: str, what: str = "", of: str = "sum") -> Query:
    """A line of each member. of: how series of its partitions become one."""
    return Query(f"{of} by (group, instance) ({query})", f"{what}, {BY_MEMBER}" if what else BY_MEMBER)


DASHBOARD = Dashboard(
    name="scorecard",
    uid="streamfl-scorecard",
    title="streamfl: quasi-Newton federation",
    system="quasi-newton",
    rows=(
        (
            Panel(
                "Loss",
                "Mean of Taylor's loss over the latest epoch, before each batch's step. It should fall and then stay; a "
                "training is "
                "over when two epochs differ by less than learning.tolerance.",
                "short",
                (Query(series("loss", COORDINATOR), BY_MEMBER),),
                minimum=None,
            ),
            Panel(
                "Trainings",
                "Number of the latest training at each member, and how many came to a model, or to nothing, within the last hour. "
                "The log of the member that ended one says why.",
                "short",
                (
                    by_member(series("training"), "latest", of="max"),
                    by_member(f"increase({series('trainings_total')}[1h])", "with a model, last hour"),
                    by_member(f"increase({series('failed_trainings_total')}[1h])", "in vain, last hour"),
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
                (by_member(series("phase"), of="max"),),
            ),
        ),
        (
            Panel(
                "Iterations a second",
                "Steps that each member took. Standing still while a training is under way, with one phase for long, means that "
                "somebody is away.",
                "ops",
                (by_member(rate("iterations_total")),),
            ),
            Panel(
                "Ciphertexts of an iteration",
                "Ciphertexts, or the numbers in their place, that each member sent in its latest whole iteration. They follow from "
                "batch, columns and key alone.",
                "short",
                (by_member(series("iteration_ciphertexts"), of="max"),),
            ),
            Panel(
                "Bytes sent a second",
                "Bytes of messages to other members.",
                "Bps",
                (by_member(rate("bytes_sent_total")),),
            ),
        ),
        (
            Panel(
                "Entities",
                "Records of columns and labels taken a second, entities that were forgotten by age or gave way, and batches "
                "that did.",
                "ops",
                (
                    by_member(rate("samples_total"), "columns"),
                    by_member(rate("expired_entities_total"), "forgotten"),
                    by_member(rate("displaced_entities_total"), "gave way"),
                    by_member(rate("expired_batches_total"), "batches"),
                ),
            ),
            Panel(
                "Decryptions",
                "Vectors that the coordinator opened: one for each party and round, and one sum. Refused ones should stay 0: a "
                "party "
                "asked for a second decryption in one round.",
                "ops",
                (
                    by_member(rate("decryptions_total"), "opened"),
                    by_member(rate("refused_decryptions_total"), "refused"),
                ),
            ),
            Panel(
                "Messages that came again",
                "Messages that came again or too late, which changes nothing, and alignments that were refused.",
                "ops",
                (
                    by_member(rate("repeated_messages_total"), "again"),
                    by_member(rate("refused_alignments_total"), "alignments"),
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
                    by_member(rate("predictions_total", *SCORING), "published"),
                    by_member(rate("answered_entities_total", *SCORING), "answered"),
                    by_member(rate("unscored_entities_total", *SCORING), "no score"),
                ),
            ),
            Panel(
                "Model on held-out entities",
                "Area under the curve, and the distance of Kolmogorov and Smirnov, on entities that the guest's present model has "
                "scored and not learnt from. It has them once entities of both labels are there.",
                "short",
                (
                    by_member(series("held_out_auc"), "AUC", of="max"),
                    by_member(series("held_out_ks"), "KS", of="max"),
                ),
                maximum=1,
            ),
            Panel(
                "Versions of the model",
                "The training that each party's present model came from, and versions that a host may still tell points of. With "
                "none left nobody is scored with a newer model: each version shows the guest more of the host's columns.",
                "short",
                (
                    by_member(series("model_version"), "present", of="max"),
                    by_member(series("model_versions_left"), "left", of="min"),
                ),
            ),
        ),
        worker_panels(),
    ),
)
