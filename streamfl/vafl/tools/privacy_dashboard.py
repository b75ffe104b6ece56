"""The privacy dashboard of vertical federations: spent budgets, and releases withheld because of them."""

from streamfl.contract.measurement import Metric
from streamfl.monitoring.dashboard import Dashboard, Panel, Query, growth, rate, series
from streamfl.monitoring.worker_panels import by_worker, worker_panels
from streamfl.vafl.metrics import CoordinatorMetrics, LabelMetrics, PartyMetrics

__all__ = ["BUDGET_USED", "PRIVACY"]


def most_spent(spent: Metric, budget: Metric) -> str:
    """The largest share of a budget that any worker's entity has spent."""
    return f"max({series(spent)} / {series(budget)})"


BUDGET_USED = Panel(
    "Privacy budget used",
    "Share of privacy.budget_mu that is spent, for the entity with a party's largest releases and for the "
    "label with the coordinator's largest ones. It stays at 100 % once the first entity has used its budget, "
    "which is normal.",
    "percentunit",
    (
        Query(most_spent(PartyMetrics.privacy_mu, PartyMetrics.privacy_budget_mu), "entity"),
        Query(most_spent(LabelMetrics.label_mu, LabelMetrics.label_budget_mu), "label"),
    ),
    kind="stat",
    width=4,
    remedy="If it is near 100 %: nothing more is sent about that entity or that label. Others continue. That "
    "is final: a budget cannot be restored.",
    nothing="no budget",
)
TILES = (
    BUDGET_USED,
    Panel(
        "Epsilon of an entity",
        "epsilon at delta = 1e-5 of the entity with a party's largest releases. Nothing is shown if only "
        "embeddings have noise, because there is no guarantee.",
        "short",
        (Query(f"max({series(PartyMetrics.privacy_epsilon)})", "epsilon"),),
        kind="stat",
        width=5,
        remedy="If it is more than you have promised: lower privacy.budget_mu for the future.",
        nothing="no guarantee",
    ),
    Panel(
        "Epsilon of a label",
        "epsilon at delta = 1e-5 of the label with the coordinator's largest releases.",
        "short",
        (Query(f"max({series(LabelMetrics.label_epsilon)})", "epsilon"),),
        kind="stat",
        width=5,
        remedy="If it is more than you have promised: lower the coordinator's privacy.budget_mu for the "
        "future.",
        nothing="no guarantee",
    ),
    Panel(
        "Embeddings held back",
        "Embeddings that were not sent, or not learnt from, in the time range.",
        "none",
        (Query(f"sum({growth(PartyMetrics.withheld_embeddings)})", "embeddings"),),
        kind="stat",
        width=5,
        remedy="If it grows: withheld embeddings, below, says for which reason.",
        nothing="0",
    ),
    Panel(
        "Labels held back",
        "Labels that were neither answered nor learnt from, in the time range.",
        "none",
        (Query(f"sum({growth(CoordinatorMetrics.withheld_labels)})", "labels"),),
        kind="stat",
        width=5,
        remedy="If it grows: withheld labels, below, says for which reason.",
        nothing="0",
    ),
)

PRIVACY = Dashboard(
    name="vertical-privacy",
    uid="streamfl-vertical-privacy",
    title="streamfl: vertical federation, privacy",
    system="vafl",
    rows=(
        TILES,
        (
            Panel(
                "Privacy: mu against the budget",
                "mu of the entity with each party's largest releases, and privacy.budget_mu, which it never "
                "exceeds. Without noise on steps only an entity's own embeddings count, which gives no "
                "guarantee.",
                "short",
                (
                    by_worker(series(PartyMetrics.privacy_mu), "mu", of="max"),
                    by_worker(series(PartyMetrics.privacy_budget_mu), "budget", of="max"),
                    by_worker(series(PartyMetrics.privacy_mu_per_release), "no guarantee", of="max"),
                ),
                remedy="If it comes near the budget: nothing more is sent about that entity. That is final; "
                "new entities have their own budget.",
            ),
            Panel(
                "Privacy: epsilon",
                "epsilon of the same mu at delta = 1e-5.",
                "short",
                (by_worker(series(PartyMetrics.privacy_epsilon), of="max"),),
                remedy="If it is more than you have promised: lower privacy.budget_mu for the future. Past "
                "releases cannot be undone.",
            ),
            Panel(
                "Withheld embeddings",
                "Embeddings that were not sent or not learnt from: an entity's budget is spent, or the "
                "ledger has no room for it (ledger).",
                "ops",
                (by_worker(rate(PartyMetrics.withheld_embeddings), label="reason"),),
                remedy="If budget: normal, the entity's budget is used up. If ledger: raise "
                "privacy.ledger_limit.",
            ),
        ),
        (
            Panel(
                "Privacy of labels: mu against the budget",
                "mu of the label with the coordinator's largest releases, and its privacy.budget_mu, which "
                "it never exceeds.",
                "short",
                (
                    by_worker(series(LabelMetrics.label_mu), "mu", of="max"),
                    by_worker(series(LabelMetrics.label_budget_mu), "budget", of="max"),
                ),
                remedy="If it comes near the budget: nothing more is released about that label. That is "
                "final.",
            ),
            Panel(
                "Privacy of labels: epsilon",
                "epsilon of the same mu at delta = 1e-5.",
                "short",
                (by_worker(series(LabelMetrics.label_epsilon), of="max"),),
                remedy="If it is more than you have promised: lower privacy.budget_mu for the future. Past "
                "releases cannot be undone.",
            ),
            Panel(
                "Withheld labels",
                "Labels that were neither answered nor learnt from: the budget of an entity's label is "
                "spent, or the ledger has no room for it (ledger).",
                "ops",
                (by_worker(rate(CoordinatorMetrics.withheld_labels), label="reason"),),
                remedy="If budget: normal. If ledger: raise privacy.ledger_limit.",
            ),
        ),
        worker_panels(),
    ),
    description="How much of their privacy budgets the members of a vertical federation have spent, and what "
    "they hold back because of it.",
)
