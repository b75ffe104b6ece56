"""What somebody has to look after in quasi-Newton federations."""

from streamfl.monitoring.alerts import MEMBER, Alert, increased

__all__ = ["ALERTS"]

COORDINATOR = '{role="quasi-newton-coordinator"}'

ALERTS = (
    Alert(
        "StreamflTrainingStands",
        # 1: parties compare entities, 2: in a round.
        f"max by ({MEMBER}) (streamfl_phase{COORDINATOR} == 1 or streamfl_phase{COORDINATOR} == 2) > 0"
        f" and max by ({MEMBER}) (changes(streamfl_iteration{COORDINATOR}[1h]) + changes(streamfl_phase{COORDINATOR}[1h])) == 0",
        60,
        "warning",
        "The training of {{ $labels.federation }} has not come further for two hours.",
        "The model before goes on scoring. The training waits, and loses nothing.",
        "Look which party is not ready or does not run, and at /readyz of the coordinator. If all work, the rounds take longer "
        "than this: a smaller batch or shorter keys.",
    ),
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
