"""What somebody has to look after in kernel federations."""

from streamfl.alerts import Alert, increased

__all__ = ["ALERTS"]

ALERTS = (
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
