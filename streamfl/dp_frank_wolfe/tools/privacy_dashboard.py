"""Dashboard of privacy in a private Frank-Wolfe federation: what was spent of the entities' budgets, and who
has none left."""

from streamfl.dp_frank_wolfe.metrics import MemberCounts, PartyMetrics
from streamfl.monitoring.dashboard import Dashboard, Panel, Query, growth, rate, series
from streamfl.monitoring.worker_panels import by_worker, worker_panels

__all__ = ["BUDGET_USED", "PRIVACY"]

PARTY = "dp-frank-wolfe-party"

BUDGET_USED = Panel(
    "Privacy budget used",
    "Share of privacy.epsilon spent by the entity with the largest releases, if every party has released as "
    "much of its share.",
    "percentunit",
    (
        Query(
            f"max({series(PartyMetrics.epsilon, PARTY)} / {series(PartyMetrics.budget_epsilon, PARTY)})",
            "used",
        ),
    ),
    kind="stat",
    width=4,
    remedy="If it reaches 100 % sooner than expected: an entity takes part in window.fits fits and "
    "serving.predictions predictions, then in no more. That is final; new entities have their own "
    "budget.",
    nothing="no noise",
)
REFUSED = (
    "If it is above 0: change nothing yet. The log has the ledger's message; the page on privacy, section "
    "When the ledger refuses, explains each message and what to do."
)
TILES = (
    BUDGET_USED,
    Panel(
        "Epsilon spent",
        "Epsilon at privacy.delta of the entity with the largest releases, if every party has released as "
        "much of its share.",
        "short",
        (Query(f"max({series(PartyMetrics.epsilon, PARTY)})", "epsilon"),),
        kind="stat",
        width=5,
        remedy="If it is infinite: something was released without noise, so there is no guarantee.",
        nothing="unknown",
    ),
    Panel(
        "Entities in the ledger",
        "Entities with releases. Their number is limited by privacy.ledger_limit.",
        "short",
        (Query(f"max({series(PartyMetrics.ledger_entities, PARTY)})", "entities"),),
        kind="stat",
        width=5,
        remedy="If it is near privacy.ledger_limit: raise the limit, because nothing is released about "
        "entities beyond it.",
        nothing="unknown",
    ),
    Panel(
        "Records without budget",
        "Records of entities without budget for a fit, in the time range.",
        "none",
        (Query(f"sum({growth(MemberCounts.spent_entities, PARTY)})", "records"),),
        kind="stat",
        width=5,
        remedy="If it is most of them: the same entities keep coming, and learning only continues with new "
        "ones.",
        nothing="0",
    ),
    Panel(
        "Releases not sent",
        "Releases that a party did not send, because its ledger does not match its state or cannot be "
        "written, in the time range.",
        "none",
        (Query(f"sum({growth(MemberCounts.refused_releases, PARTY)})", "releases"),),
        kind="stat",
        width=5,
        remedy=REFUSED,
        bad_from=0.5,
        nothing="0",
    ),
)

PRIVACY = Dashboard(
    name="sparse-privacy",
    uid="streamfl-sparse-privacy",
    title="streamfl: private sparse regression, privacy",
    system="dp-frank-wolfe",
    rows=(
        TILES,
        (
            Panel(
                "Epsilon against the budget",
                "Epsilon at privacy.delta of the entity with the largest releases, if every party has "
                "released as much of its share. It never exceeds privacy.epsilon. Nothing is shown if it is "
                "infinite, because the noise then gives no guarantee.",
                "short",
                (
                    by_worker(series(PartyMetrics.epsilon, PARTY), "spent", of="max"),
                    by_worker(series(PartyMetrics.budget_epsilon, PARTY), "budget", of="max"),
                ),
                remedy="If it comes near the budget: nothing more is released about that entity. That is "
                "final; new entities have their own budget.",
            ),
            Panel(
                "Releases",
                "Links of each party's ledger, one for each frozen window or release, for fits and for "
                "predictions. It only grows.",
                "short",
                (by_worker(series(PartyMetrics.ledger_links), of="max"),),
                remedy="If it does not grow in a fit: see releases held back.",
            ),
            Panel(
                "Releases held back",
                "Releases that a party did not send, because its ledger does not match its state or cannot "
                "be written. The party is not ready meanwhile.",
                "ops",
                (by_worker(rate(MemberCounts.refused_releases)),),
                remedy=REFUSED,
            ),
        ),
        (
            Panel(
                "Rho of each party",
                "Privacy cost of each party's own releases, for its entity with the largest ones, in "
                "zero-concentrated differential privacy. Costs add up; epsilon is computed from them.",
                "short",
                (by_worker(series(PartyMetrics.rho, PARTY), of="max"),),
                remedy="If one party's cost grows faster than the others': its share of the budget is "
                "larger, or it has answered more fits.",
            ),
            Panel(
                "Entities charged",
                "Entities a second that were charged the cost of a fit, and records of entities without "
                "budget for one.",
                "ops",
                (
                    by_worker(rate(MemberCounts.charged_entities, PARTY), "charged"),
                    by_worker(rate(MemberCounts.spent_entities, PARTY), "no budget"),
                ),
                remedy="If none are charged while records come: entities lack columns or a label, or their "
                "budget is spent.",
            ),
            Panel(
                "Predictions without budget",
                "Records a second of entities without budget for another prediction, or beyond window.limit.",
                "ops",
                (by_worker(rate(MemberCounts.unpredicted_entities)),),
                remedy="If it is most of them: more predictions are requested for an entity than "
                "serving.predictions allows.",
            ),
        ),
        worker_panels(),
    ),
    description="How much of each entity's privacy budget parties have spent, and what they hold back "
    "because of it.",
)
