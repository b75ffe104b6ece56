"""Dashboards of quasi-Newton federations: a training's place, its loss, the cost of encryption, and
refusals."""

from streamfl.monitoring.dashboard import Dashboard, Panel, Query, growth, rate, series, within_the_hour
from streamfl.monitoring.worker_panels import (
    BY_WORKER,
    by_worker,
    lag_tile,
    refused_tile,
    samples_tile,
    worker_panels,
    workers_tile,
)
from streamfl.quasi_newton.metrics import (
    CoordinatorMetrics,
    GuestMetrics,
    HeldOutMetrics,
    HostMetrics,
    MemberCounts,
    PartyMetrics,
    TrafficMetrics,
)

__all__ = ["DASHBOARD", "DASHBOARDS"]

SCORING = ("quasi-newton-guest", "quasi-newton-host")
COORDINATOR = "quasi-newton-coordinator"


TILES = (
    workers_tile(),
    samples_tile(*SCORING, width=3),
    Panel(
        "Loss of the training",
        "Mean of Taylor's loss over the latest epoch. It begins near 0.69.",
        "short",
        (Query(f"max({series(CoordinatorMetrics.loss, COORDINATOR)})", "loss"),),
        minimum=None,
        kind="stat",
        width=3,
        remedy="If it rises from epoch to epoch: lower learning.learning_rate or learning.largest_step.",
        nothing="no epoch yet",
    ),
    Panel(
        "Area under the curve",
        "For the current model, on entities that it has not learnt from: one half is chance, 1 is perfect.",
        "percentunit",
        (Query(f"max({series(HeldOutMetrics.held_out_auc)})", "held out"),),
        maximum=1,
        kind="stat",
        width=4,
        remedy="If it falls towards one half: the stream has changed since the training. Train again.",
        bad_below=0.55,
        nothing="no labels",
    ),
    Panel(
        "Decryptions refused",
        "Requests of a party for a second number in one round, in the time range.",
        "none",
        (Query(f"sum({growth(MemberCounts.refused_decryptions, COORDINATOR)})", "refused"),),
        kind="stat",
        width=3,
        remedy="If it is above 0: somebody tries to decrypt data of others. Nothing was decrypted. Find out "
        "who runs that party.",
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
                "Entities that each party knows, as alignment.entities counts them, and those that the first "
                "training still waits for.",
                "short",
                (
                    by_worker(series(PartyMetrics.known_entities)),
                    by_worker(series(PartyMetrics.missing_entities), "missing"),
                ),
                remedy="If many are missing and few come: /readyz says what the member waits for. Lower "
                "alignment.entities, or check why columns or labels do not come.",
            ),
        ),
        (
            Panel(
                "Loss",
                "Mean of Taylor's loss over the latest epoch, before each batch's step. It should fall and "
                "then stay; a training is over when two epochs differ by less than learning.tolerance.",
                "short",
                (Query(series(CoordinatorMetrics.loss, COORDINATOR), BY_WORKER),),
                minimum=None,
                remedy="If it rises again: lower learning.learning_rate or learning.largest_step.",
            ),
            Panel(
                "Trainings",
                "Number of the latest training at each member, and number of trainings with and without a "
                "model within the last hour. The log of the member that ended one says why.",
                "short",
                (
                    by_worker(series(PartyMetrics.training), "latest", of="max"),
                    by_worker(within_the_hour(MemberCounts.trainings), "with a model, last hour"),
                    by_worker(within_the_hour(MemberCounts.failed_trainings), "without a model, last hour"),
                ),
                remedy="If one failed: the log and /readyz of the coordinator say why. The previous model "
                "keeps scoring.",
            ),
            Panel(
                "Phase",
                "Phase of each member. Party: 0 waits for entities, 1 is ready, 2 compares entities, 3 waits "
                "for vectors, 4 for what is decrypted, 5 for inner products, 6 for the decision, 7 has "
                "learnt, 8 has failed. Coordinator: 0 waits for parties, 1 they compare entities, 2 in a "
                "round, 3 has ended, 4 has failed.",
                "short",
                (by_worker(series(PartyMetrics.phase), of="max"),),
                remedy="If a member stays in one phase while the others wait: it is absent or refuses "
                "messages. Its /readyz says why.",
            ),
        ),
        (
            Panel(
                "Iterations a second",
                "Steps that each member took. No steps during a training, with one phase for long, mean that "
                "a member is absent.",
                "ops",
                (by_worker(rate(MemberCounts.iterations)),),
                remedy="If it does not change: look at the phase of each member, and at the lag of the one "
                "that the others wait for.",
            ),
            Panel(
                "Ciphertexts of an iteration",
                "Ciphertexts, or the numbers in their place, that each member sent in its latest complete "
                "iteration. They depend only on batch, columns and key.",
                "short",
                (by_worker(series(TrafficMetrics.iteration_ciphertexts), of="max"),),
                remedy="If members of one role differ: their batches or keys differ. Compare their "
                "configurations.",
            ),
            Panel(
                "Bytes sent a second",
                "Bytes of messages to other members.",
                "Bps",
                (by_worker(rate(MemberCounts.bytes_sent)),),
                remedy="If it is more than the network carries: make the batch smaller, or use a shorter key "
                "where the privacy page allows it.",
            ),
        ),
        (
            Panel(
                "Entities",
                "Records of columns and labels a second, entities that were forgotten by age or dropped for "
                "newer ones, and dropped batches.",
                "ops",
                (
                    by_worker(rate(MemberCounts.samples), "columns"),
                    by_worker(rate(MemberCounts.expired_entities), "forgotten"),
                    by_worker(rate(MemberCounts.displaced_entities), "gave way"),
                    by_worker(rate(MemberCounts.expired_batches), "batches"),
                ),
                remedy="If many are forgotten or dropped: they wait longer for the other party than the "
                "settings allow. Raise the limits, or check why the other party is late.",
            ),
            Panel(
                "Decryptions",
                "Vectors that the coordinator decrypted: one for each party and round, and one sum. Refused "
                "ones (a party asked for a second decryption in one round) should stay 0. So should "
                "implausible ones (numbers beyond the public bounds).",
                "ops",
                (
                    by_worker(rate(MemberCounts.decryptions), "opened"),
                    by_worker(rate(MemberCounts.refused_decryptions), "refused"),
                    by_worker(rate(MemberCounts.implausible_openings), "implausible"),
                ),
                remedy="If one was refused: somebody requests data of others. Find out who runs that party, "
                "and stop the federation until then.",
            ),
            Panel(
                "Repeated messages",
                "Messages that were repeated or too late, which have no effect, and alignments that were "
                "refused.",
                "ops",
                (
                    by_worker(rate(MemberCounts.repeated_messages), "again"),
                    by_worker(rate(MemberCounts.refused_alignments), "alignments"),
                ),
                remedy="If alignments are refused: a party sent invalid points. A few repeated messages "
                "after a restart are normal.",
            ),
        ),
        (
            Panel(
                "Predictions",
                "Predictions a second of the guest, entities for which a host sent its part of the output, "
                "and entities without a score because a part is beyond the bound or unknown.",
                "ops",
                (
                    by_worker(rate(MemberCounts.predictions, *SCORING), "published"),
                    by_worker(rate(MemberCounts.answered_entities, *SCORING), "answered"),
                    by_worker(rate(MemberCounts.unscored_entities, *SCORING), "no score"),
                ),
                remedy="If many have no score: raise the public bound of a host's part, or check whether "
                "hosts know the same entities.",
            ),
            Panel(
                "Model on held-out entities",
                "Area under the curve, and the Kolmogorov-Smirnov distance, on entities that the guest's "
                "current model has scored but not learnt from. They exist once there are entities of both "
                "labels.",
                "short",
                (
                    by_worker(series(HeldOutMetrics.held_out_auc), "AUC", of="max"),
                    by_worker(series(HeldOutMetrics.held_out_ks), "KS", of="max"),
                ),
                maximum=1,
                remedy="If the area under the curve falls: the stream has changed since the training. Train "
                "again.",
            ),
            Panel(
                "Versions of the model",
                "The training of each party's current model, and the number of versions for which a host may "
                "still send points. With none left no newer model is used for scores: each version reveals "
                "more of the host's columns to the guest.",
                "short",
                (
                    by_worker(series(GuestMetrics.model_version), "present", of="max"),
                    by_worker(series(HostMetrics.model_versions_left), "left", of="min"),
                ),
                remedy="If few are left: after the last one no newer model is used for scores. The privacy "
                "page says what a higher number reveals.",
            ),
        ),
        worker_panels(),
    ),
    description="The progress of a quasi-Newton federation's training, the quality of its model, and "
    "refusals.",
)
DASHBOARDS = (DASHBOARD,)
