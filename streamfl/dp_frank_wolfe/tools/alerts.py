"""Alerts for federations of DP Frank-Wolfe."""

from streamfl.monitoring.alerts import MEMBER, Alert, gets_records, increased, stopped

__all__ = ["ALERTS"]

SPENT = increased("spent_entities_total", 60)

ALERTS = (
    Alert(
        "StreamflReleaseRefused",
        f"{increased('refused_releases_total', 15)} > 0",
        0,
        "critical",
        "{{ $labels.group }} holds releases back: its ledger does not match its state.",
        "This party releases nothing, so no budget is spent twice. Fits continue without it.",
        "Its /readyz says how ledger and state differ, and the page on privacy what to do in each case. Never make a new ledger.",
    ),
    Alert(
        "StreamflAnswersMissing",
        f"{increased('missing_answers_total', 30)} > 0",
        0,
        "warning",
        "A party of {{ $labels.federation }} did not answer in a fit.",
        "The fit continued without its columns, but the budget of its entities is spent.",
        "Check whether its workers run. If it is only slow, raise window.patience_seconds at the server.",
    ),
    Alert(
        "StreamflEntitiesMissing",
        f"max by ({MEMBER}) (min_over_time(streamfl_missing_entities[1h])) > 0"
        f" and max by ({MEMBER}) (delta(streamfl_missing_entities[1h])) > 0"
        f" and {increased('windows_total', 60)} == 0 and max by ({MEMBER}) (changes(streamfl_complete_entities[1h])) == 0",
        60,
        "warning",
        "Entities of {{ $labels.federation }} become known to some parties but not to others.",
        "No window gets full, so there is no new fit.",
        "The server's log says how many are missing at which party. Check whether that party's workers run, and whether it uses "
        "the same keys as the others.",
    ),
    Alert(
        "StreamflFirstWindowWaits",
        f"max by ({MEMBER}) (streamfl_window) == 0 and max by ({MEMBER}) (streamfl_lacking_entities offset 1d) > 0"
        f" and {gets_records(24 * 60)}"
        f" and {increased('announced_entities_total', 24 * 60)} == 0",
        60,
        "warning",
        "{{ $labels.group }} gets records, but for a day no entity has become complete for a first window.",
        "There is no model yet: the first window does not get full.",
        "streamfl_lacking_entities says whether columns or labels are missing. Check whether both come, and with the same keys.",
    ),
    Alert(
        "StreamflFitsStand",
        stopped("windows_total", "samples_total"),
        0,
        "warning",
        "{{ $labels.group }} gets samples, but no window begins any more.",
        "There is no new fit, and the model gets old. The alert fires after three times the usual interval between windows: "
        "three days if there is one each day.",
        "Check whether the server runs. streamfl_lacking_entities shows missing columns or labels, and "
        "streamfl_spent_entities_total spent budgets.",
    ),
    Alert(
        "StreamflNoModelYet",
        f"{increased('early_records_total', 60)} > 0.5 * {increased('samples_total', 60)}",
        60,
        "warning",
        "{{ $labels.group }} predicts nothing: it has no model yet.",
        "Records come, but no predictions are made for them.",
        "The first fit has not ended. Look at the server's phase, and compare streamfl_waiting_entities with window.rows.",
    ),
    Alert(
        "StreamflPredictionsExpired",
        f"{increased('expired_predictions_total', 60)} > 0.1 * {increased('predictions_total', 60)}",
        30,
        "warning",
        "Predictions of {{ $labels.federation }} are given up: a party does not send its part.",
        "At least one prediction in ten is not made.",
        "Check whether the workers of all parties run, and whether they know the same entities.",
    ),
    Alert(
        "StreamflPredictionBudgetNearlySpent",
        f"{increased('unpredicted_entities_total', 60)} > 0.1 * {increased('samples_total', 60)}",
        30,
        "warning",
        "One record in ten of {{ $labels.group }} is of an entity that may not be predicted again.",
        "These entities get no prediction. It is normal that some entities use up their budget; the alert does not fire for a few.",
        "Nothing is broken, and a budget cannot be restored. If entities are refused because the limit is reached, raise "
        "window.limit.",
    ),
    Alert(
        "StreamflFitBudgetNearlySpent",
        f"{SPENT} > 0.1 * ({increased('samples_total', 60)} + {increased('labels_total', 60)})",
        30,
        "warning",
        "One record in ten of {{ $labels.group }} is of an entity whose privacy budget is spent.",
        "These entities take part in no further fit. The others do, until their budgets are spent too. It is normal that some "
        "entities use up their budget; the alert does not fire for a few.",
        "Nothing is broken, and a budget cannot be restored: fits need new entities. If the log says that the ledger is full: "
        "raise privacy.ledger_limit.",
    ),
)
