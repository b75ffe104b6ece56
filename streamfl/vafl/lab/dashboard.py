"""What to watch of vertical federations: loss, who is behind, what is forgotten, what privacy is left, what is broken."""

from streamfl.dashboard import Dashboard, Panel, Query, rate, series, worker_panels

__all__ = ["DASHBOARD"]


def weighted_by_labels(figure: str) -> str:
    """The mean of a coordinator's figure over all that have it: one with more labels counts more."""
    labels, own = series("labels_total"), series(figure)
    return f"sum({own} * on (job, instance) {labels}) / sum({labels} and on (job, instance) {own})"


def of_coordinators(query: str) -> str:
    """Without other roles, which have a metric of the same name: coordinators alone count what they learnt from."""
    return f"{query} and on (job, instance) {series('learnt_total')}"


def of_parties(query: str) -> str:
    """Without other roles, which have a metric of the same name: parties alone count embeddings that they sent again."""
    return f"{query} and on (job, instance) {series('embeddings_again_total')}"


DASHBOARD = Dashboard(
    name="vertical",
    uid="streamfl-vertical",
    title="streamfl: vertical federation",
    jobs_with="entities",
    rows=(
        (
            Panel(
                "Loss before the label",
                "Mean loss of the predictions that were there when the label came, over the last 1000 labels of each "
                "coordinator's worker, weighed by their labels; with the square loss on labels scaled to 0..1. It should "
                "fall.",
                "short",
                (
                    Query(weighted_by_labels("loss_windowed"), "all workers"),
                    Query(series("loss_windowed"), "{{job}} {{instance}}"),
                ),
                minimum=None,
            ),
            Panel(
                "Accuracy before the label",
                "Share of those predictions that were right. Empty with the square loss.",
                "percentunit",
                (
                    Query(weighted_by_labels("accuracy"), "all workers"),
                    Query(series("accuracy"), "{{job}} {{instance}}"),
                ),
                maximum=1,
            ),
            Panel(
                "Predictions a second",
                "Entities predicted, predictions made anew with a further embedding, labels, times that an entity was learnt "
                "from, and of those times that fewer parties than learning.quorum had shown it in time.",
                "ops",
                (
                    Query(f"sum({of_coordinators(rate('predictions_total'))})", "first predictions"),
                    Query(f"sum({rate('revised_predictions_total')})", "revised predictions"),
                    Query(f"sum({of_coordinators(rate('labels_total'))})", "labels"),
                    Query(f"sum({rate('learnt_total')})", "learnt from"),
                    Query(f"sum({rate('learnt_below_quorum_total')})", "learnt from below the quorum"),
                ),
            ),
        ),
        (
            Panel(
                "Embeddings a second by party",
                "What each party's workers send, and what the coordinator takes of all. A party that is away is missing or at "
                "0; the others go on.",
                "ops",
                (
                    Query(f"sum by (job, instance) ({of_parties(rate('embeddings_total'))})", "sent, {{job}} {{instance}}"),
                    Query(f"sum({of_coordinators(rate('embeddings_total'))})", "taken by the coordinator"),
                ),
            ),
            Panel(
                "Steps a second",
                "Steps of each party's parameters, and of the head's at the coordinator.",
                "ops",
                (Query(f"sum by (job, instance) ({rate('steps_total')})", "{{job}} {{instance}}"),),
            ),
            Panel(
                "Refused steps",
                "Steps not taken because a parameter would have become infinite: inputs or the learning rate are too large.",
                "ops",
                (Query(f"sum by (job, instance) ({rate('refused_steps_total')})", "{{job}} {{instance}}"),),
            ),
        ),
        (
            Panel(
                "Staleness in steps",
                "Steps that a party took since an embedding that a gradient was computed from, its own or another party's, on "
                "average and at most, since the coordinator's start.",
                "short",
                (
                    Query(f"max({series('staleness_mean')})", "mean"),
                    Query(f"max({series('staleness_largest')})", "largest"),
                ),
            ),
            Panel(
                "Newer embeddings asked for",
                "Requests because of learning.max_staleness, the answers of each party, requests that nobody answered in "
                "time, and embeddings that were too old to be used and could not be had anew.",
                "ops",
                (
                    Query(f"sum({rate('requests_total')})", "requests"),
                    Query(f"sum by (job, instance) ({rate('embeddings_again_total')})", "answers, {{job}} {{instance}}"),
                    Query(f"sum({rate('silent_parties_total')})", "not answered"),
                    Query(f"sum({rate('outdated_embeddings_total')})", "too old, not used"),
                ),
            ),
            Panel(
                "Entities that wait",
                "At a party entities without their gradient, and samples held back by learning.in_flight; at the coordinator "
                "entities that are remembered.",
                "short",
                (
                    Query(f"sum by (job, instance) ({series('entities')})", "entities, {{job}} {{instance}}"),
                    Query(f"sum by (job, instance) ({of_parties(series('waiting_samples'))})", "samples, {{job}} {{instance}}"),
                ),
            ),
        ),
        (
            Panel(
                "Entities forgotten",
                "At a party without a gradient, at the coordinator before they were learnt from, by what never came. no_label "
                "where labels are sure to come means that keys differ or alignment.expiry_seconds is too short.",
                "ops",
                (Query(f"sum by (job, instance, reason) ({rate('forgotten_entities_total')})", "{{job}} {{instance}} {{reason}}"),),
            ),
            Panel(
                "Ignored messages",
                "Embeddings and replies that changed nothing: repeated, of an earlier life, superseded, or to an entity that "
                "is forgotten.",
                "ops",
                (
                    Query(f"sum by (reason) ({rate('ignored_embeddings_total')})", "embeddings, {{reason}}"),
                    Query(f"sum by (reason) ({rate('ignored_replies_total')})", "replies, {{reason}}"),
                    Query(f"sum({of_coordinators(rate('duplicate_labels_total'))})", "labels"),
                ),
            ),
            Panel(
                "Gradients a second",
                "Sent by the coordinator, and learnt from by each party.",
                "ops",
                (
                    Query(f"sum({of_coordinators(rate('gradients_total'))})", "sent by the coordinator"),
                    Query(f"sum by (job, instance) ({of_parties(rate('gradients_total'))})", "learnt from, {{job}} {{instance}}"),
                ),
            ),
        ),
        (
            Panel(
                "Privacy: mu against the budget",
                "mu of the entity of which each party has released most, and privacy.budget_mu, which it never exceeds. "
                "Without noise on steps only an entity's own embeddings are counted, which is no guarantee.",
                "short",
                (
                    Query(f"max by (job, instance) ({series('privacy_mu')})", "mu, {{job}} {{instance}}"),
                    Query(f"max by (job, instance) ({series('privacy_budget_mu')})", "budget, {{job}} {{instance}}"),
                    Query(f"max by (job, instance) ({series('privacy_mu_per_release')})", "no guarantee, {{job}} {{instance}}"),
                ),
            ),
            Panel(
                "Privacy: epsilon",
                "epsilon of the same mu at delta = 1e-5.",
                "short",
                (Query(f"max by (job, instance) ({series('privacy_epsilon')})", "{{job}} {{instance}}"),),
            ),
            Panel(
                "Withheld embeddings",
                "Not sent or not learnt from: an entity's budget is spent, or there is no room to remember what is (ledger).",
                "ops",
                (
                    Query(
                        f"sum by (job, instance, reason) ({rate('withheld_embeddings_total')})", "{{job}} {{instance}} {{reason}}"
                    ),
                ),
            ),
        ),
        (
            Panel(
                "Privacy of labels: mu against the budget",
                "mu of the entity of whose label the coordinator has told most, and its privacy.budget_mu, which that never "
                "exceeds.",
                "short",
                (
                    Query(f"max by (job, instance) ({series('label_mu')})", "mu, {{job}} {{instance}}"),
                    Query(f"max by (job, instance) ({series('label_budget_mu')})", "budget, {{job}} {{instance}}"),
                ),
                id=19,
            ),
            Panel(
                "Privacy of labels: epsilon",
                "epsilon of the same mu at delta = 1e-5.",
                "short",
                (Query(f"max by (job, instance) ({series('label_epsilon')})", "{{job}} {{instance}}"),),
                id=20,
            ),
            Panel(
                "Withheld labels",
                "Neither answered nor learnt from: the budget of an entity's label is spent, or there is no room to remember "
                "what is (ledger).",
                "ops",
                (Query(f"sum by (job, instance, reason) ({rate('withheld_labels_total')})", "{{job}} {{instance}} {{reason}}"),),
                id=21,
            ),
        ),
        worker_panels(16),
    ),
)
