"""Alerts for federations of DP Frank-Wolfe."""

from streamfl.dp_frank_wolfe.metrics import MemberCounts, PartyMetrics, ServerMetrics
from streamfl.monitoring.alerts import MEMBER, Alert, alert_when_stopped, gets_records, increased

__all__ = ["ALERTS"]

SPENT = increased(MemberCounts.spent_entities, 60)

ALERTS = (
    Alert(
        "StreamflReleaseRefused",
        f"{increased(MemberCounts.refused_releases, 15)} > 0",
        0,
        "critical",
        "{{ $labels.group }} holds releases back: its ledger does not match its state.",
        "This party releases nothing, so no budget is spent twice. Fits continue without it.",
        "Its /readyz says how ledger and state differ, and the page on privacy what to do in each case. "
        "Never make a new ledger.",
    ),
    Alert(
        "StreamflAnswersMissing",
        f"{increased(MemberCounts.missing_answers, 30)} > 0",
        0,
        "warning",
        "A party of {{ $labels.federation }} did not answer in a fit.",
        "The fit continued without its columns, but the budget of its entities is spent.",
        "Check whether its workers run. If it is only slow, raise window.patience_seconds at the server.",
    ),
    Alert(
        "StreamflEntitiesMissing",
        f"max by ({MEMBER}) (min_over_time({ServerMetrics.missing_entities}[1h])) > 0"
        f" and max by ({MEMBER}) (delta({ServerMetrics.missing_entities}[1h])) > 0"
        f" and {increased(MemberCounts.windows, 60)} == 0"
        f" and max by ({MEMBER}) (changes({ServerMetrics.complete_entities}[1h])) == 0",
        60,
        "warning",
        "Entities of {{ $labels.federation }} become known to some parties but not to others.",
        "No window gets full, so there is no new fit.",
        "The server's log says how many are missing at which party. Check whether that party's workers run, "
        "and whether it uses the same keys as the others.",
    ),
    Alert(
        "StreamflFirstWindowWaits",
        f"max by ({MEMBER}) ({PartyMetrics.window}) == 0 and max by ({MEMBER}) "
        f"({PartyMetrics.lacking_entities} offset 1d) > 0 and {gets_records(24 * 60)} and "
        f"{increased(MemberCounts.announced_entities, 24 * 60)} == 0",
        60,
        "warning",
        "{{ $labels.group }} gets records, but for a day no entity has become complete for a first window.",
        "There is no model yet: the first window does not get full.",
        f"{PartyMetrics.lacking_entities} says whether columns or labels are missing. Check whether both "
        "come, and with the same keys.",
    ),
    alert_when_stopped(
        "StreamflFitsStand",
        MemberCounts.windows,
        [MemberCounts.samples],
        "warning",
        "{{ $labels.group }} gets samples, but no window begins any more.",
        "There is no new fit, and the model gets old. The alert fires after three times the usual interval "
        "between windows: three days if there is one each day.",
        f"Check whether the server runs. {PartyMetrics.lacking_entities} shows missing columns or labels, "
        f"and {MemberCounts.spent_entities} spent budgets.",
    ),
    Alert(
        "StreamflNoModelYet",
        f"{increased(MemberCounts.early_records, 60)} > 0.5 * {increased(MemberCounts.samples, 60)}",
        60,
        "warning",
        "{{ $labels.group }} predicts nothing: it has no model yet.",
        "Records come, but no predictions are made for them.",
        "The first fit has not ended. Look at the server's phase, and compare "
        f"{PartyMetrics.waiting_entities} with window.rows.",
    ),
    Alert(
        "StreamflPredictionsExpired",
        # Of less time than the alert has to hold: a short absence of a party does not outlast itself.
        f"{increased(MemberCounts.expired_predictions, 15)} > 0.1 * "
        f"{increased(MemberCounts.predictions, 15)}",
        30,
        "warning",
        "Predictions of {{ $labels.federation }} are given up: a party does not send its part.",
        "At least one prediction in ten is not made.",
        "Check whether the workers of all parties run, and whether they know the same entities.",
    ),
    Alert(
        "StreamflPredictionBudgetNearlySpent",
        f"{increased(MemberCounts.unpredicted_entities, 60)} > 0.1 * {increased(MemberCounts.samples, 60)}",
        30,
        "warning",
        "One record in ten of {{ $labels.group }} is of an entity that may not be predicted again.",
        "These entities get no prediction. It is normal that some entities use up their budget; the alert "
        "does not fire for a few.",
        "Nothing is broken, and a budget cannot be restored. If entities are refused because the limit is "
        "reached, raise window.limit.",
    ),
    Alert(
        "StreamflFitBudgetNearlySpent",
        f"{SPENT} > 0.1 * ({increased(MemberCounts.samples, 60)} + {increased(MemberCounts.labels, 60)})",
        30,
        "warning",
        "One record in ten of {{ $labels.group }} is of an entity whose privacy budget is spent.",
        "These entities take part in no further fit. The others do, until their budgets are spent too. It is "
        "normal that some entities use up their budget; the alert does not fire for a few.",
        "Nothing is broken, and a budget cannot be restored: fits need new entities. If the log says that "
        "the ledger is full: raise privacy.ledger_limit.",
    ),
)
