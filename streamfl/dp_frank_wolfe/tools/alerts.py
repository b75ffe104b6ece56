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
        "{{ $labels.group }} holds releases back: its ledger does not fit its state.",
        "Nothing leaves this party, so no budget is spent twice. Fits go on without it.",
        "Its /readyz says how ledger and state differ, and the page on privacy what to do about each case. Never make a "
        "new ledger.",
    ),
    Alert(
        "StreamflAnswersMissing",
        f"{increased('missing_answers_total', 30)} > 0",
        0,
        "warning",
        "A party of {{ $labels.federation }} did not answer in a fit.",
        "The fit went on without its columns, and the budget of its entities is spent all the same.",
        "Look whether its workers run. Raise window.patience_seconds at the server if it is only slow.",
    ),
    Alert(
        "StreamflEntitiesMissing",
        f"max by ({MEMBER}) (min_over_time(streamfl_missing_entities[1h])) > 0"
        f" and max by ({MEMBER}) (delta(streamfl_missing_entities[1h])) > 0"
        f" and {increased('windows_total', 60)} == 0 and max by ({MEMBER}) (changes(streamfl_complete_entities[1h])) == 0",
        60,
        "warning",
        "Entities of {{ $labels.federation }} become known to some parties and to others not.",
        "No window fills, so there is no new fit.",
        "The server's log says at which party how many are missing. Look whether that party's workers run, and whether its keys "
        "are the others'.",
    ),
    Alert(
        "StreamflFirstWindowWaits",
        f"max by ({MEMBER}) (streamfl_window) == 0 and max by ({MEMBER}) (streamfl_lacking_entities offset 1d) > 0"
        f" and {gets_records(24 * 60)}"
        f" and {increased('announced_entities_total', 24 * 60)} == 0",
        60,
        "warning",
        "{{ $labels.group }} gets records, and for a day none has made an entity that a first window could have.",
        "There is no model yet: nothing fills the first window.",
        "streamfl_lacking_entities says whether columns or labels lack. Look whether both come, and under the same keys.",
    ),
    Alert(
        "StreamflFitsStand",
        stopped("windows_total", "samples_total"),
        0,
        "warning",
        "{{ $labels.group }} gets samples, and no window begins any more.",
        "There is no new fit, and the model becomes old. It is told after three of the times in which windows usually began: three "
        "days, where there is one each day.",
        "Look whether the server runs, and at streamfl_lacking_entities and streamfl_spent_entities_total: columns or labels that "
        "do not come, or budgets that are spent.",
    ),
    Alert(
        "StreamflNoModelYet",
        f"{increased('early_records_total', 60)} > 0.5 * {increased('samples_total', 60)}",
        60,
        "warning",
        "{{ $labels.group }} predicts nothing: it has no model yet.",
        "Records come, predictions are asked for, and none is made of them.",
        "The first fit has not ended. Look at the server's phase, and at streamfl_waiting_entities against window.rows.",
    ),
    Alert(
        "StreamflPredictionsExpired",
        f"{increased('expired_predictions_total', 60)} > 0.1 * {increased('predictions_total', 60)}",
        30,
        "warning",
        "Predictions of {{ $labels.federation }} are given up: a party does not tell its part.",
        "One prediction in ten, or more, is not made.",
        "Look whether the workers of all parties run, and whether they know the same entities.",
    ),
    Alert(
        "StreamflPredictionBudgetNearlySpent",
        f"{increased('unpredicted_entities_total', 60)} > 0.1 * {increased('samples_total', 60)}",
        30,
        "warning",
        "One record in ten of {{ $labels.group }} is of an entity that may not be predicted again.",
        "Nothing is predicted for these. That some entities come to their end is as it should be, and not told.",
        "Nothing is broken, and a budget does not come back. If it is for want of room, raise window.limit.",
    ),
    Alert(
        "StreamflFitBudgetNearlySpent",
        f"{SPENT} > 0.1 * ({increased('samples_total', 60)} + {increased('labels_total', 60)})",
        30,
        "warning",
        "One record in ten of {{ $labels.group }} is of an entity whose privacy budget is spent.",
        "These entities are in no further fit. The others go on, until their budgets are spent too. That some entities come to "
        "their end is as it should be, and not told.",
        "Nothing is broken, and a budget does not come back: fits need new entities. If the ledger is full instead, the log says "
        "so: raise privacy.ledger_limit.",
    ),
)
