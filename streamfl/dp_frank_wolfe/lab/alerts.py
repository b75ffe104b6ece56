"""What somebody has to look after in federations of DP Frank-Wolfe."""

from streamfl.alerts import Alert, increased

__all__ = ["ALERTS"]

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
)
