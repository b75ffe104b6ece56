"""Dashboard of a private Frank-Wolfe federation: what was spent, where a fit is, who is away, what is held
back."""

from streamfl.dp_frank_wolfe.metrics import MemberCounts, PartyMetrics, ServerMetrics
from streamfl.dp_frank_wolfe.tools.privacy_dashboard import BUDGET_USED, PRIVACY
from streamfl.monitoring.dashboard import Dashboard, Panel, Query, rate, series, within_the_hour
from streamfl.monitoring.worker_panels import (
    by_worker,
    lag_tile,
    refused_tile,
    samples_tile,
    worker_panels,
    workers_tile,
)

__all__ = ["DASHBOARD", "DASHBOARDS"]

SERVER = "dp-frank-wolfe-server"
PARTY = "dp-frank-wolfe-party"


TILES = (
    workers_tile(),
    samples_tile(PARTY, width=3),
    Panel(
        "Entities for the next window",
        "Entities that wait and that all parties have announced. A window begins at window.rows.",
        "short",
        (Query(f"max({series(ServerMetrics.complete_entities)})", "entities"),),
        kind="stat",
        width=3,
        remedy="If it does not grow while records come: some party has not announced them. Entities without "
        "a window, below, says how many are missing.",
        nothing="unknown",
    ),
    Panel(
        "Parties absent now",
        "Absent parties. The server continues without them.",
        "none",
        (Query(f"max({series(ServerMetrics.parties_away)})", "away"),),
        kind="stat",
        width=3,
        remedy="If it is above 0: start that party again. Its columns are not part of the fit, but its "
        "entities' budget is spent.",
        bad_from=1,
        nothing="unknown",
    ),
    BUDGET_USED,
    refused_tile(width=3),
    lag_tile(),
)

DASHBOARD = Dashboard(
    name="sparse",
    uid="streamfl-sparse",
    title="streamfl: private sparse regression",
    system="dp-frank-wolfe",
    rows=(
        TILES,
        (
            Panel(
                "Phase",
                "Phase of each member. Party: 0 waits for a window, 1 in a fit. Server: 0 waits for "
                "entities, 1 waits for parties to freeze the window, 2 in a fit.",
                "short",
                (by_worker(series(ServerMetrics.phase), of="max"),),
                remedy="If the server stays in 1 or 2 while iterations do not advance: a party is absent. "
                "Parties away, below, says how many.",
            ),
            Panel(
                "Iterations a second",
                "Iterations that each party answered and the server decided. If none come within a fit, a "
                "party is absent.",
                "ops",
                (by_worker(rate(MemberCounts.iterations)),),
                remedy="If it stops in phase 2: a party does not answer. After window.patience_seconds the "
                "fit continues without it.",
            ),
            Panel(
                "Windows and models",
                "Number of the latest window at each member, and number of fits that gave a model within the "
                "last hour. Each window has one fit.",
                "short",
                (
                    by_worker(series(ServerMetrics.window), "latest window", of="max"),
                    by_worker(within_the_hour(MemberCounts.models), "models, last hour"),
                ),
                remedy="If windows begin but no models come: the fits do not end. Look at the phase and at "
                "parties away.",
            ),
        ),
        (
            Panel(
                "Model",
                "Columns with a weight in the latest fit, and the sum of the absolute weights, which stays "
                "within learning.radius.",
                "short",
                (
                    by_worker(series(ServerMetrics.support, SERVER), "columns", of="max"),
                    by_worker(series(ServerMetrics.l1_norm), "l1 norm", of="max"),
                ),
                remedy="If it has no columns: the budget of a fit is too small for these data, so noise "
                "decides. With fewer iterations, each one gets more budget.",
            ),
            Panel(
                "Uplink of a fit",
                "Numbers that parties have released in the latest fit: a signed index is one, a sketch as "
                "many as learning.sketch_rows.",
                "short",
                (by_worker(series(ServerMetrics.fit_uplink_numbers), of="max"),),
                remedy="If it is much: lower learning.sketch_rows.",
            ),
            Panel(
                "Bytes sent a second",
                "Bytes of messages to other members.",
                "Bps",
                (by_worker(rate(MemberCounts.bytes_sent)),),
                remedy="If it is 0 in a fit: the party holds its releases back. Its log says which backup to "
                "restore.",
            ),
        ),
        (
            Panel(
                "Entities",
                "Records of columns a second, entities that were announced, and entities that were charged "
                "for a fit.",
                "ops",
                (
                    by_worker(rate(MemberCounts.samples, PARTY), "records"),
                    by_worker(rate(MemberCounts.announced_entities, PARTY), "announced"),
                    by_worker(rate(MemberCounts.charged_entities), "charged"),
                ),
                remedy="If records come but no entities are announced: they lack columns or a label, or have "
                "no budget left.",
            ),
            Panel(
                "Entities without a window",
                "At the server: entities that all parties have announced (a window begins at window.rows), "
                "and entities that some party has not announced (they wait without a time limit). Records a "
                "second of entities without budget, and entities a second that were dropped for newer ones.",
                "short",
                (
                    by_worker(series(ServerMetrics.complete_entities), "wait", of="max"),
                    by_worker(series(ServerMetrics.missing_entities), "missing at a party", of="max"),
                    by_worker(rate(MemberCounts.spent_entities), "no budget"),
                    by_worker(rate(MemberCounts.displaced_entities, PARTY), "dropped"),
                ),
                remedy="If many are missing at a party: its keys differ, or it is absent. The server's log "
                "says how many are missing at which party.",
            ),
            Panel(
                "Incomplete entities",
                "Entities at each party whose columns or label have not come. They wait without a time "
                "limit.",
                "short",
                (
                    Query(
                        f"sum by (group, instance, reason) ({series(PartyMetrics.lacking_entities, PARTY)})",
                        "{{reason}}, {{group}} {{instance}}",
                    ),
                ),
                remedy="If both grow: keys of labels and samples differ. If one grows: check whether its "
                "topic is written.",
            ),
        ),
        (
            Panel(
                "Predictions",
                "Predictions published a second, records without budget for one, and predictions that were "
                "given up because a part was missing for too long.",
                "ops",
                (
                    by_worker(rate(MemberCounts.predictions, SERVER), "published"),
                    by_worker(rate(MemberCounts.unpredicted_entities), "no budget"),
                    by_worker(rate(MemberCounts.expired_predictions, SERVER), "expired"),
                ),
                remedy="If many expire: a party answers later than serving allows, or is absent. If many "
                "have no budget: it is spent, and that is final.",
            ),
            Panel(
                "Repeated messages",
                "Messages that were repeated or too late. They have no effect.",
                "ops",
                (by_worker(rate(MemberCounts.repeated_messages)),),
                remedy="If it does not end: a member keeps restarting. Look at restarts.",
            ),
            Panel(
                "Parties away",
                "Parties that have not answered for window.patience_seconds, and answers that came too late "
                "within the last hour. A fit continues without them, but their budget for it is spent.",
                "short",
                (
                    by_worker(series(ServerMetrics.parties_away), "away", of="max"),
                    by_worker(within_the_hour(MemberCounts.late_answers), "late"),
                ),
                remedy="If one is absent: start it again. Its columns are not part of this fit, but the "
                "budget is spent.",
            ),
        ),
        worker_panels(),
    ),
    description="The progress of a DP Frank-Wolfe federation's fit, absent parties, and predictions.",
)
DASHBOARDS = (DASHBOARD, PRIVACY)
