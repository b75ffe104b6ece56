"""What somebody has to look after in kernel federations."""

from streamfl.monitoring.alerts import Alert, increased

__all__ = ["ALERTS"]

MASKS = '{reason="masks"}'

ALERTS = (
    Alert(
        "StreamflMasksDoNotFit",
        f"{increased('abandoned_rounds_total', 60, chosen=MASKS)} > 0",
        0,
        "warning",
        "Masks of {{ $labels.federation }} do not cancel.",
        "These rounds are given up and asked again. Nothing wrong was learnt.",
        "Somebody changes messages, or a party has another version or other settings: run streamfl check CONFIG at each.",
    ),
    Alert(
        "StreamflRowsDropped",
        f"{increased('rows_dropped_total', 60)} > 0",
        30,
        "warning",
        "{{ $labels.group }} leaves labelled entities out: a party has forgotten their columns.",
        "The window that is learnt from is smaller than it was meant to be.",
        "streamfl_forgotten_entities_total of the parties says who forgets and why: raise that party's alignment.limit, or lower "
        "learning.window.",
    ),
    Alert(
        "StreamflRoundsAbandoned",
        f"{increased('abandoned_rounds_total', 15, 'reason')} > 10",
        15,
        "warning",
        "{{ $labels.group }} gives up rounds: {{ $labels.reason }}.",
        "What such a round asked is asked again, so nothing is lost. Meanwhile nothing is learnt or predicted.",
        "timeout: a party is slow or away, look at rounds by party. masks: members have different settings, or somebody "
        "changed a message.",
    ),
)
