"""Dashboard of privacy in a private Frank-Wolfe federation: what was spent of the entities' budgets, and who has none left."""

from streamfl.monitoring.dashboard import Dashboard, Panel, Query, growth, rate, series
from streamfl.monitoring.worker_panels import BY_WORKER, worker_panels

__all__ = ["BUDGET_USED", "PRIVACY"]

PARTY = "dp-frank-wolfe-party"

BUDGET_USED = Panel(
    "Privacy budget used",
    "Share of privacy.epsilon that is spent of the entity of which most was released, if every party has released as much of "
    "its share.",
    "percentunit",
    (Query(f"max({series('epsilon', PARTY)} / {series('budget_epsilon', PARTY)})", "used"),),
    kind="stat",
    width=4,
    remedy="If it is 100 % sooner than you thought: an entity takes part in window.fits fits and serving.predictions "
    "predictions, and then no more. That is final; new entities have a budget of their own.",
    nothing="no noise",
)
REFUSED = (
    "If it is above 0: change nothing yet. The log says in which words the ledger refuses, and the page on privacy, section When "
    "the ledger refuses, says what each means and what to do."
)
TILES = (
    BUDGET_USED,
    Panel(
        "Epsilon spent",
        "Of the entity of which most was released, at privacy.delta, if every party has released as much of its share.",
        "short",
        (Query(f"max({series('epsilon', PARTY)})", "epsilon"),),
        kind="stat",
        width=5,
        remedy="If it is infinite: something was released without noise, and nothing is promised of it.",
        nothing="unknown",
    ),
    Panel(
        "Entities in the ledger",
        "Entities of which something was released. privacy.ledger_limit is the most.",
        "short",
        (Query(f"max({series('ledger_entities', PARTY)})", "entities"),),
        kind="stat",
        width=5,
        remedy="If it is near privacy.ledger_limit: raise that, for nothing is released of entities without room.",
        nothing="unknown",
    ),
    Panel(
        "Records without budget",
        "Records, over the time that is shown, of entities that have no budget left for a fit.",
        "none",
        (Query(f"sum({growth('spent_entities_total', PARTY)})", "records"),),
        kind="stat",
        width=5,
        remedy="If it is most of them: the same entities come again and again, and learning goes on with new ones only.",
        nothing="0",
    ),
    Panel(
        "Releases not sent",
        "Releases, over the time that is shown, that a party did not send, for its ledger does not fit its state or cannot be "
        "written.",
        "none",
        (Query(f"sum({growth('refused_releases_total', PARTY)})", "releases"),),
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
                "Of the entity of which most was released, at privacy.delta, if every party has released as much of its share. It "
                "never exceeds privacy.epsilon. Nothing is shown where noise promises nothing: it is infinite.",
                "short",
                (
                    Query(f"max by (group, instance) ({series('epsilon', PARTY)})", f"spent, {BY_WORKER}"),
                    Query(f"max by (group, instance) ({series('budget_epsilon', PARTY)})", f"budget, {BY_WORKER}"),
                ),
                remedy="If it comes near the budget: nothing more is released of that entity. That is final; new entities have "
                "a budget of their own.",
            ),
            Panel(
                "Releases",
                "Links of each party's ledger: what was frozen or released, for fits and for predictions. It only grows.",
                "short",
                (Query(f"max by (group, instance) ({series('ledger_links')})", BY_WORKER),),
                remedy="If it stands still in a fit: see releases held back.",
            ),
            Panel(
                "Releases held back",
                "Releases that a party did not send, for its ledger does not fit its state or cannot be written. The party is not "
                "ready meanwhile.",
                "ops",
                (Query(f"sum by (group, instance) ({rate('refused_releases_total')})", BY_WORKER),),
                remedy=REFUSED,
            ),
        ),
        (
            Panel(
                "Rho of each party",
                "What each party alone has released of the entity of which it has released most, in zero-concentrated differential "
                "privacy. It adds up: epsilon follows from it.",
                "short",
                (Query(f"max by (group, instance) ({series('rho', PARTY)})", BY_WORKER),),
                remedy="If one party's grows faster than the others': its share of the budget is larger, or it has answered "
                "more fits.",
            ),
            Panel(
                "Entities charged",
                "Entities that were charged the cost of a fit a second, and records of those that had no budget left for one.",
                "ops",
                (
                    Query(f"sum by (group, instance) ({rate('charged_entities_total', PARTY)})", f"charged, {BY_WORKER}"),
                    Query(f"sum by (group, instance) ({rate('spent_entities_total', PARTY)})", f"no budget, {BY_WORKER}"),
                ),
                remedy="If none are charged while records come: they lack columns or a label, or their budget is spent.",
            ),
            Panel(
                "Predictions without budget",
                "Records of entities that have no budget for another prediction, or beyond window.limit, a second.",
                "ops",
                (Query(f"sum by (group, instance) ({rate('unpredicted_entities_total')})", BY_WORKER),),
                remedy="If it is most of them: entities are asked for more often than serving.predictions allows.",
            ),
        ),
        worker_panels(),
    ),
    description="What parties have spent of each entity's privacy budget, and what they hold back for it.",
)
