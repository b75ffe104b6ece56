"""Alerts for the operators of quasi-Newton federations."""

from streamfl.monitoring.alerts import MEMBER, Alert, gets_records, increased
from streamfl.quasi_newton.metrics import CoordinatorMetrics, HostMetrics, MemberCounts, PartyMetrics

__all__ = ["ALERTS"]

PARTY = 'role=~"quasi-newton-(guest|host)"'
COORDINATOR = 'role="quasi-newton-coordinator"'
PARTY_PHASE = PartyMetrics.phase.where(PARTY)
PHASE = CoordinatorMetrics.phase.where(COORDINATOR)

ALERTS = (
    Alert(
        "StreamflFirstTrainingWaits",
        f"max by ({MEMBER}) ({PartyMetrics.missing_entities}) > 0 and max by ({MEMBER}) "
        f"({PartyMetrics.known_entities}) <= max by ({MEMBER}) ({PartyMetrics.known_entities} offset 1d) and "
        f"{gets_records(24 * 60)}",
        60,
        "warning",
        "{{ $labels.group }} gets records, but for a day no further entity has become complete for the first "
        "training.",
        "There is no model yet: the first training waits for alignment.entities entities.",
        "Its /readyz says how many it knows. At a guest, check whether labels come with the keys of the "
        f"samples, and whether {MemberCounts.expired_entities} or {MemberCounts.displaced_entities} grow.",
    ),
    Alert(
        "StreamflTrainingStands",
        # 1: parties compare entities, 2: in a round.
        f"max by ({MEMBER}) ({PHASE} == 1 or {PHASE} == 2) > 0 and max by ({MEMBER}) "
        f"(changes({CoordinatorMetrics.iteration.where(COORDINATOR)}[1h]) + changes({PHASE}[1h])) == 0",
        60,
        "warning",
        "The training of {{ $labels.federation }} has made no progress for two hours.",
        "The previous model keeps scoring. The training waits, and loses nothing.",
        "Check which party is not ready or does not run, and /readyz of the coordinator. If "
        "streamfl_deleted_unread_records_total of a member has grown, a message is gone and the training "
        "cannot go on: another key ends it, and the next begins by itself. If all work, a round takes longer "
        "than this: use a smaller batch or shorter keys.",
    ),
    Alert(
        "StreamflPartyWaits",
        # From comparing entities to waiting for the decision.
        f"max by ({MEMBER}) ({PARTY_PHASE} >= 2 and {PARTY_PHASE} <= 6) and max by ({MEMBER}) "
        f"(changes({PartyMetrics.iteration.where(PARTY)}[1h]) + changes({PARTY_PHASE}[1h])) == 0",
        60,
        "warning",
        "{{ $labels.group }} has waited in a training for two hours.",
        "It waits for the coordinator or another party, and loses nothing. The previous model keeps scoring.",
        f"{PartyMetrics.phase} says what it waits for. Check whether that member runs and is ready; somebody "
        "else may operate it.",
    ),
    Alert(
        "StreamflQuestionsUnanswered",
        # A question is given up after a minute, two, four, and so on: a short absence is not worth an alert.
        f"{increased(MemberCounts.abandoned_questions, 60)} > 2",
        0,
        "warning",
        "A host of {{ $labels.federation }} does not answer questions about scores.",
        "Entities that this host knows are not scored until it does.",
        "Check whether that host's workers run: the guest's log names it.",
    ),
    Alert(
        "StreamflModelVersionsNearlySpent",
        f"min by ({MEMBER}) ({HostMetrics.model_versions_left}) <= 1",
        0,
        "warning",
        "{{ $labels.group }} may answer for one more version of the model, or for none.",
        "Once none is left, new models cannot score: this host refuses all questions.",
        "The limit prevents reconstruction of this host's columns, so think before you raise "
        "scoring.versions.",
    ),
    Alert(
        "StreamflTrainingFailed",
        f"{increased(MemberCounts.failed_trainings, 60)} > 0",
        0,
        "critical",
        "A training of {{ $labels.federation }} failed.",
        "The previous model keeps scoring.",
        "The log of the coordinator and its /readyz say why: too few common entities, or a rising loss.",
    ),
    Alert(
        "StreamflDecryptionRefused",
        f"{increased(MemberCounts.refused_decryptions, 60)} > 0",
        0,
        "critical",
        "A party of {{ $labels.federation }} asked for a decryption that is not its own.",
        "It was refused, and nothing was decrypted.",
        "The coordinator's log names the party and the round. Its operator has to explain it.",
    ),
)
