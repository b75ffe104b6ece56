"""What somebody has to look after in quasi-Newton federations."""

from streamfl.alerts import Alert, increased

__all__ = ["ALERTS"]

ALERTS = (
    Alert(
        "StreamflTrainingFailed",
        f"{increased('failed_trainings_total', 60)} > 0",
        0,
        "critical",
        "A training of {{ $labels.federation }} came to nothing.",
        "The model before goes on scoring.",
        "The log of the coordinator and its /readyz say why: too few common entities, or a loss that rises.",
    ),
    Alert(
        "StreamflDecryptionRefused",
        f"{increased('refused_decryptions_total', 60)} > 0",
        0,
        "critical",
        "A party of {{ $labels.federation }} asked for a decryption that is not its own.",
        "It was refused: nothing was told.",
        "Find out who it was: the coordinator's log names the party and the round. Its operator has to explain it.",
    ),
)
