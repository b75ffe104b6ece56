"""What to watch of vertical federations: loss, who is behind, what is forgotten, what privacy is left, what is broken."""

from streamfl.dashboard import Dashboard, Panel, Query, mean_over_time, rate, series, worker_panels

__all__ = ["DASHBOARD"]

PARTY = "vafl-party"
COORDINATOR = "vafl-coordinator"


DASHBOARD = Dashboard(
    name="vertical",
    uid="streamfl-vertical",
    title="streamfl: vertical federation",
    system="vafl",
    rows=(
        (
            Panel(
                "Loss before the label",
                "Mean loss of the predictions that were there when the label came, over the latest interval; with the square loss "
                "on labels scaled to 0..1. It should fall.",
                "short",
                (
                    Query(mean_over_time("loss_sum_total", "scored_total"), "all workers"),
                    Query(series("loss_windowed"), "the last 1000 labels, {{group}} {{instance}}"),
                ),
                minimum=None,
            ),
            Panel(
                "Accuracy before the label",
                "Share of those predictions that were right. Empty with the square loss.",
                "percentunit",
                (
                    Query(mean_over_time("right_predictions_total", "scored_total"), "all workers"),
                    Query(series("accuracy"), "the last 1000 labels, {{group}} {{instance}}"),
                ),
                maximum=1,
            ),
            Panel(
                "Predictions a second",
                "Entities predicted, predictions made anew with a further embedding, labels, times that an entity was learnt "
                "from, and of those times that fewer parties than learning.quorum had shown it in time.",
                "ops",
                (
                    Query(f"sum({rate('predictions_total', COORDINATOR)})", "first predictions"),
                    Query(f"sum({rate('revised_predictions_total')})", "revised predictions"),
                    Query(f"sum({rate('labels_total', COORDINATOR)})", "labels"),
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
                    Query(f"sum by (group, instance) ({rate('embeddings_total', PARTY)})", "sent, {{group}} {{instance}}"),
                    Query(f"sum({rate('embeddings_total', COORDINATOR)})", "taken by the coordinator"),
                ),
            ),
            Panel(
                "Steps a second",
                "Steps of each party's parameters, and of the head's at the coordinator.",
                "ops",
                (Query(f"sum by (group, instance) ({rate('steps_total')})", "{{group}} {{instance}}"),),
            ),
            Panel(
                "Refused steps",
                "Steps not taken because a parameter would have become infinite: inputs or the learning rate are too large.",
                "ops",
                (Query(f"sum by (group, instance) ({rate('refused_steps_total')})", "{{group}} {{instance}}"),),
            ),
        ),
        (
            Panel(
                "Staleness in steps",
                "Steps that a party took since an embedding that a gradient was computed from, its own or another party's, on "
                "average over the latest interval, and at most over the last 1000 of them.",
                "short",
                (
                    Query(mean_over_time("staleness_steps_total", "aged_embeddings_total"), "mean"),
                    Query(f"max({series('staleness_largest_windowed')})", "largest"),
                ),
            ),
            Panel(
                "Newer embeddings asked for",
                "Requests because of learning.max_staleness, the answers of each party, requests that nobody answered in "
                "time, and embeddings that were too old to be used and could not be had anew.",
                "ops",
                (
                    Query(f"sum({rate('requests_total')})", "requests"),
                    Query(f"sum by (group, instance) ({rate('embeddings_again_total')})", "answers, {{group}} {{instance}}"),
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
                    Query(f"sum by (group, instance) ({series('entities')})", "entities, {{group}} {{instance}}"),
                    Query(f"sum by (group, instance) ({series('waiting_samples', PARTY)})", "samples, {{group}} {{instance}}"),
                ),
            ),
        ),
        (
            Panel(
                "Entities forgotten",
                "At a party without a gradient, at the coordinator before they were learnt from, by what never came. no_label "
                "where labels are sure to come means that keys differ or alignment.expiry_seconds is too short.",
                "ops",
                (
                    Query(
                        f"sum by (group, instance, reason) ({rate('forgotten_entities_total')})",
                        "{{group}} {{instance}} {{reason}}",
                    ),
                ),
            ),
            Panel(
                "Ignored messages",
                "Embeddings and replies that changed nothing: repeated, of an earlier life, superseded, or to an entity that "
                "is forgotten.",
                "ops",
                (
                    Query(f"sum by (reason) ({rate('ignored_embeddings_total')})", "embeddings, {{reason}}"),
                    Query(f"sum by (reason) ({rate('ignored_replies_total')})", "replies, {{reason}}"),
                    Query(f"sum({rate('duplicate_labels_total', COORDINATOR)})", "labels"),
                ),
            ),
            Panel(
                "Gradients a second",
                "Sent by the coordinator, and learnt from by each party.",
                "ops",
                (
                    Query(f"sum({rate('gradients_total', COORDINATOR)})", "sent by the coordinator"),
                    Query(f"sum by (group, instance) ({rate('gradients_total', PARTY)})", "learnt from, {{group}} {{instance}}"),
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
                    Query(f"max by (group, instance) ({series('privacy_mu')})", "mu, {{group}} {{instance}}"),
                    Query(f"max by (group, instance) ({series('privacy_budget_mu')})", "budget, {{group}} {{instance}}"),
                    Query(f"max by (group, instance) ({series('privacy_mu_per_release')})", "no guarantee, {{group}} {{instance}}"),
                ),
            ),
            Panel(
                "Privacy: epsilon",
                "epsilon of the same mu at delta = 1e-5.",
                "short",
                (Query(f"max by (group, instance) ({series('privacy_epsilon')})", "{{group}} {{instance}}"),),
            ),
            Panel(
                "Withheld embeddings",
                "Not sent or not learnt from: an entity's budget is spent, or there is no room to remember what is (ledger).",
                "ops",
                (
                    Query(
                        f"sum by (group, instance, reason) ({rate('withheld_embeddings_total')})",
                        "{{group}} {{instance}} {{reason}}",
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
                    Query(f"max by (group, instance) ({series('label_mu')})", "mu, {{group}} {{instance}}"),
                    Query(f"max by (group, instance) ({series('label_budget_mu')})", "budget, {{group}} {{instance}}"),
                ),
                id=19,
            ),
            Panel(
                "Privacy of labels: epsilon",
                "epsilon of the same mu at delta = 1e-5.",
                "short",
                (Query(f"max by (group, instance) ({series('label_epsilon')})", "{{group}} {{instance}}"),),
                id=20,
            ),
            Panel(
                "Withheld labels",
                "Neither answered nor learnt from: the budget of an entity's label is spent, or there is no room to remember "
                "what is (ledger).",
                "ops",
                (
                    Query(
                        f"sum by (group, instance, reason) ({rate('withheld_labels_total')})", "{{group}} {{instance}} {{reason}}"
                    ),
                ),
                id=21,
            ),
        ),
        worker_panels(16),
    ),
)
