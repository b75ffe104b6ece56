"""The alerts of kernel federations."""

from streamfl.fdskl.metrics import ActiveMetrics, PartyMetrics
from streamfl.monitoring.alerts import Alert, alert_when_stopped, increased

__all__ = ["ALERTS"]

ALERTS = (
    Alert(
        "StreamflMasksDoNotFit",
        f"{increased(PartyMetrics.abandoned_rounds, 60, reason='masks')} > 0",
        0,
        "warning",
        "Masks of {{ $labels.federation }} do not cancel.",
        "These rounds are given up and repeated. Nothing wrong was learnt.",
        "Somebody changes messages, or a party has another version or other settings: run streamfl check "
        "CONFIG at each party.",
    ),
    Alert(
        "StreamflRowsDropped",
        f"{increased(ActiveMetrics.rows_dropped, 60)} > 0",
        30,
        "warning",
        "{{ $labels.group }} leaves labelled entities out: a party has forgotten their columns.",
        "The window that is learnt from is smaller than intended.",
        f"{PartyMetrics.forgotten_entities} of the parties shows which party forgets, and why: raise that "
        "party's alignment.limit, or lower learning.window.",
    ),
    alert_when_stopped(
        "StreamflIterationsStand",
        ActiveMetrics.iterations,
        [PartyMetrics.samples],
        "critical",
        "{{ $labels.group }} gets samples but has stopped learning.",
        "The model no longer changes. The alert fires after three times the usual interval between learning: "
        "15 minutes, three hours or three days.",
        "Check /readyz of the active party, which names parties that do not answer, then labels and "
        "abandoned rounds.",
    ),
    Alert(
        "StreamflPredictedUntrained",
        f"{increased(ActiveMetrics.predictions, 60)} > 0 and "
        f"{increased(ActiveMetrics.iterations, 7 * 24 * 60)} == 0",
        60,
        "warning",
        "{{ $labels.group }} predicts with a model that has learnt nothing for a week.",
        "If it never learnt, all its predictions are the same number.",
        "Check whether labels come with the keys of the samples, and whether all parties take part in "
        "rounds.",
    ),
    Alert(
        "StreamflRoundsAbandoned",
        f"{increased(PartyMetrics.abandoned_rounds, 15, 'reason')} > 10",
        15,
        "warning",
        "{{ $labels.group }} gives up rounds: {{ $labels.reason }}.",
        "Such a round is repeated, so nothing is lost. Meanwhile nothing is learnt or predicted.",
        "timeout: a party is slow or absent, see rounds by party. masks: members have different settings, or "
        "somebody changed a message.",
    ),
)
