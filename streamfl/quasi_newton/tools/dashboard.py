"""Dashboards of quasi-Newton federations: a training's place, its loss, the cost of encryption, and refusals."""

from streamfl.monitoring.dashboard import Dashboard, Panel, Query, growth, rate, series
from streamfl.monitoring.worker_panels import BY_WORKER, lag_tile, refused_tile, samples_tile, worker_panels, workers_tile

__all__ = ["DASHBOARD", "DASHBOARDS"]

SCORING = ("quasi-newton-guest", "quasi-newton-host")
COORDINATOR = "quasi-newton-coordinator"


def by_member(query: str, what: str = "", of: str = "sum") -> Query:
    """A query with a line for each member. of: how the series of its partitions are aggregated."""
    return Query(f"{of} by (group, instance) ({query})", f"{what}, {BY_WORKER}" if what else BY_WORKER)


def within_the_hour(counter: str) -> str:
    """How much a counter grew in the last hour. For rare events a rate per second says little."""
    return f"increase({series(counter)}[1h])"


TILES = (
    workers_tile(),
    samples_tile(*SCORING, width=3),
    Panel(
        "Loss of the training",
        "Mean of Taylor's loss over the latest epoch. It begins near 0.69.",
        "short",
        (Query(f"max({series('loss', COORDINATOR)})", "loss"),),
        minimum=None,
        kind="stat",
        width=3,
        remedy="If it rises from epoch to epoch: lower learning.learning_rate or learning.largest_step.",
        nothing="no epoch yet",
    ),
    Panel(
        "Area under the curve",
        "Of the present model on entities that it has not learnt from: one half is chance, 1 is perfect.",
        "percentunit",
        (Query(f"max({series('held_out_auc')})", "held out"),),
        maximum=1,
        kind="stat",
        width=4,
        remedy="If it falls towards one half: the stream has changed since the training. Train anew.",
        bad_below=0.55,
        nothing="no labels",
    ),
    Panel(
        "Decryptions refused",
        "Times, over the time that is shown, that a party asked the coordinator for a second number in one round.",
        "none",
        (Query(f"sum({growth('refused_decryptions_total', COORDINATOR)})", "refused"),),
        kind="stat",
        width=3,
        remedy="If it is above 0: somebody tries to have decrypted what is not theirs. Nothing was told. Find out who runs "
        "that party.",
        bad_from=0.5,
        nothing="0",
    ),
    refused_tile(width=3),
    lag_tile(),
)

DASHBOARD = Dashboard(
    name="scorecard",
    uid="streamfl-scorecard",
    title="streamfl: quasi-Newton federation",
    system="quasi-newton",
    rows=(
        TILES,
        (
            Panel(
                "Entities before the first training",
                "Entities that each party knows, as alignment.entities counts them, and those that the first training still waits "
                "for.",
                "short",
                (
                    by_member(series("known_entities")),
                    by_member(series("missing_entities"), "missing"),
                ),
                remedy="If many are missing and few come: /readyz says what is waited for. Lower alignment.entities, or look why "
                "columns or labels do not come.",
            ),
        ),
        (
            Panel(
                "Loss",
                "Mean of Taylor's loss over the latest epoch, before each batch's step. It should fall and then stay; a "
                "training is over when two epochs differ by less than learning.tolerance.",
                "short",
                (Query(series("loss", COORDINATOR), BY_WORKER),),
                minimum=None,
                remedy="If it rises again: lower learning.learning_rate or learning.largest_step.",
            ),
            Panel(
                "Trainings",
                "Number of the latest training at each member, and how many came to a model, or to nothing, within the last "
                "hour. The log of the member that ended one says why.",
                "short",
                (
                    by_member(series("training"), "latest", of="max"),
                    by_member(within_the_hour("trainings_total"), "with a model, last hour"),
                    by_member(within_the_hour("failed_trainings_total"), "in vain, last hour"),
                ),
                remedy="If one came to nothing: the log and /readyz of the coordinator say why. The model before goes on scoring.",
            ),
            Panel(
                "Phase",
                "Where each member is. Party: 0 waits for entities, 1 is ready, 2 compares entities, 3 waits for vectors, 4 "
                "for what is decrypted, 5 for inner products, 6 for the decision, 7 has learnt, 8 has failed. Coordinator: 0 "
                "waits for parties, 1 they compare entities, 2 in a round, 3 has ended, 4 has failed.",
                "short",
                (by_member(series("phase"), of="max"),),
                remedy="If a member stays in one phase while the others wait: it is away or refuses messages. Ask its /readyz.",
            ),
        ),
        (
            Panel(
                "Iterations a second",
                "Steps that each member took. Standing still while a training is under way, with one phase for long, means that "
                "somebody is away.",
                "ops",
                (by_member(rate("iterations_total")),),
                remedy="If it stands still: look at the phase of each member, and at the lag of the one that is waited for.",
            ),
            Panel(
                "Ciphertexts of an iteration",
                "Ciphertexts, or the numbers in their place, that each member sent in its latest whole iteration. They follow from "
                "batch, columns and key alone.",
                "short",
                (by_member(series("iteration_ciphertexts"), of="max"),),
                remedy="If members of one role differ: their batches or keys do. Compare their configurations.",
            ),
            Panel(
                "Bytes sent a second",
                "Bytes of messages to other members.",
                "Bps",
                (by_member(rate("bytes_sent_total")),),
                remedy="If it is more than the network carries: make the batch smaller, or use a shorter key where the privacy "
                "page allows it.",
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
                remedy="If many are forgotten or give way: they wait longer for the other party than the settings allow. Raise the "
                "limits, or look why the other is late.",
            ),
            Panel(
                "Decryptions",
                "Vectors that the coordinator opened: one for each party and round, and one sum. Refused ones should stay 0: a "
                "party asked for a second decryption in one round. So should implausible ones: numbers beyond the public bounds.",
                "ops",
                (
                    by_member(rate("decryptions_total"), "opened"),
                    by_member(rate("refused_decryptions_total"), "refused"),
                    by_member(rate("implausible_openings_total"), "implausible"),
                ),
                remedy="If one was refused: somebody asks for what is not theirs. Find out who runs that party, and stop the "
                "federation until then.",
            ),
            Panel(
                "Messages that came again",
                "Messages that came again or too late, which changes nothing, and alignments that were refused.",
                "ops",
                (
                    by_member(rate("repeated_messages_total"), "again"),
                    by_member(rate("refused_alignments_total"), "alignments"),
                ),
                remedy="If alignments are refused: a party sent points that are none. A few messages again after a restart are "
                "well.",
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
                remedy="If many have no score: raise the public bound of a host's part, or look whether hosts know the same "
                "entities.",
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
                remedy="If the area under the curve falls: the stream has changed since the training. Train anew.",
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
                remedy="If few are left: nobody is scored with a newer model after the last. The privacy page says what "
                "raising the number shows.",
            ),
        ),
        worker_panels(),
    ),
    description="Where the training of a quasi-Newton federation is, how good its model is, and what is refused.",
)
DASHBOARDS = (DASHBOARD,)
