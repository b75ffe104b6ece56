"""Alerts for the operators of vertical federations."""

from streamfl.monitoring.alerts import MEMBER, Alert, alert_when_stopped, increased
from streamfl.vafl.metrics import CoordinatorMetrics, PartyMetrics

__all__ = ["ALERTS"]

WITHHELD_EMBEDDINGS = increased(PartyMetrics.withheld_embeddings, 60, reason="budget")
WITHHELD_LABELS = increased(CoordinatorMetrics.withheld_labels, 60, reason="budget")
UNLEARNT = ("no_label", "no_embedding", "no_quorum")

ALERTS = (
    Alert(
        "StreamflPartySilent",
        f"{increased(CoordinatorMetrics.silent_parties, 30)} > 0",
        15,
        "warning",
        "A party of {{ $labels.federation }} does not answer the coordinator.",
        "Entities are learnt from without it once learning.quorum parties have sent them, and predicted from "
        "the others' columns.",
        "Check whether that party's workers run: the panel of embeddings by party shows which one is at 0.",
    ),
    Alert(
        "StreamflPrivacyBudgetNearlySpent",
        f"{WITHHELD_EMBEDDINGS} > 0.1 * ({WITHHELD_EMBEDDINGS} + "
        f"{increased(CoordinatorMetrics.embeddings, 60)}) or {WITHHELD_LABELS} > 0.1 * ({WITHHELD_LABELS} + "
        f"{increased(CoordinatorMetrics.learnt, 60)})",
        30,
        "warning",
        "{{ $labels.group }} holds back one in ten: the privacy budgets of these entities are spent.",
        "Nothing more is learnt from these entities. The others continue, until their budgets are spent too. "
        "It is normal that some entities use up their budget; the alert does not fire for a few.",
        "Nothing is broken, and a budget cannot be restored. If the share grows, each entity is used too "
        "often: use fewer epochs, more noise from the beginning, or new entities.",
    ),
    Alert(
        "StreamflNothingLearnt",
        f"{increased(CoordinatorMetrics.forgotten_entities, 60, 'reason', reason=UNLEARNT)} > 0"
        f" unless on ({MEMBER}) {increased(CoordinatorMetrics.learnt, 60)} > 0",
        30,
        "warning",
        "{{ $labels.group }} forgets entities and learns from none: {{ $labels.reason }}.",
        "Records that belong to one entity do not meet, so the model does not change.",
        "no_label: the keys of labels and samples differ, or expiry_seconds is shorter than labels take. "
        "no_embedding and no_quorum: a party is absent, or has other keys.",
    ),
    alert_when_stopped(
        "StreamflLearningStands",
        CoordinatorMetrics.learnt,
        [CoordinatorMetrics.embeddings],
        "critical",
        "{{ $labels.group }} gets embeddings but has stopped learning from them.",
        "The model no longer changes. The alert fires after three times the usual interval between learning: "
        "15 minutes, three hours or three days.",
        f"Check labels first, then embeddings by party. {CoordinatorMetrics.forgotten_entities} shows what "
        f"never came, and {CoordinatorMetrics.withheld_labels} whether budgets are spent.",
    ),
    Alert(
        "StreamflPredictedUnlearnt",
        f"{increased(CoordinatorMetrics.predictions, 60)} > 0 and "
        f"{increased(CoordinatorMetrics.learnt, 7 * 24 * 60)} == 0",
        60,
        "warning",
        "{{ $labels.group }} predicts with a model that has learnt nothing for a week.",
        "If it never learnt, its predictions come from random parameters.",
        "Check whether labels come with the keys of the samples, and whether all parties send their "
        "entities.",
    ),
    Alert(
        "StreamflBelowQuorum",
        # Of less time than the alert has to hold: a short absence of a party does not outlast itself.
        f"{increased(CoordinatorMetrics.learnt_below_quorum, 15)} > 0.1 * "
        f"{increased(CoordinatorMetrics.learnt, 15)}",
        30,
        "warning",
        "{{ $labels.group }} learns one in ten entities from fewer parties than learning.quorum.",
        "The missing parties' columns of these entities are not used.",
        "Look at the panel of embeddings by party. If a party does not know every entity, and need not, "
        "lower learning.quorum.",
    ),
    Alert(
        "StreamflTwoSpeak",
        f"{increased(CoordinatorMetrics.superseded_embeddings, 60)} > 0",
        0,
        "critical",
        "Two processes send in the name of one party of {{ $labels.federation }}.",
        "A second process with another group, or a stranger, sends embeddings in a party's name.",
        "Check who may write to the topic of embeddings, and whether all processes of a party have the same "
        "role.group. Give members keys.",
    ),
    Alert(
        "StreamflStepsRefused",
        f"{increased(CoordinatorMetrics.refused_steps, 15)} > 0",
        0,
        "warning",
        "Steps of {{ $labels.group }} would have made a parameter infinite.",
        "The step was not taken, so the model is unchanged. It does not learn from such samples.",
        "Lower learning.learning_rate, or bring the inputs to about -1 to 1.",
    ),
)
