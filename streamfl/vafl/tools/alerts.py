"""Alerts for the operators of vertical federations."""

from streamfl.monitoring.alerts import MEMBER, Alert, increased, stopped

__all__ = ["ALERTS"]

SPENT = '{reason="budget"}'
WITHHELD_EMBEDDINGS = increased("withheld_embeddings_total", 60, chosen=SPENT)
WITHHELD_LABELS = increased("withheld_labels_total", 60, chosen=SPENT)
UNLEARNT = '{reason=~"no_label|no_embedding|no_quorum"}'

ALERTS = (
    Alert(
        "StreamflPartySilent",
        f"{increased('silent_parties_total', 30)} > 0",
        15,
        "warning",
        "A party of {{ $labels.federation }} does not answer the coordinator.",
        "Entities are learnt from without it once learning.quorum parties have shown them, and predicted from the others' "
        "columns.",
        "Look whether that party's workers run: the panel of embeddings by party shows which one is at 0.",
    ),
    Alert(
        "StreamflPrivacyBudgetNearlySpent",
        f"{WITHHELD_EMBEDDINGS} > 0.1 * ({WITHHELD_EMBEDDINGS} + {increased('embeddings_total', 60)})"
        f" or {WITHHELD_LABELS} > 0.1 * ({WITHHELD_LABELS} + {increased('learnt_total', 60)})",
        30,
        "warning",
        "{{ $labels.group }} holds back one in ten: the privacy budgets of these entities are spent.",
        "Nothing more is learnt of these entities. The others go on, until their budgets are spent too. That some entities come to "
        "their end is as it should be, and not told.",
        "Nothing is broken, and a budget does not come back. If the share grows, each entity is asked about too often: fewer "
        "epochs, more noise from the beginning, or entities that nobody has asked about yet.",
    ),
    Alert(
        "StreamflNothingLearnt",
        f"{increased('forgotten_entities_total', 60, 'reason', chosen=UNLEARNT)} > 0"
        f" unless on ({MEMBER}) {increased('learnt_total', 60)} > 0",
        30,
        "warning",
        "{{ $labels.group }} forgets entities and learns from none: {{ $labels.reason }}.",
        "What has to come together for an entity does not: the model stands still.",
        "no_label: the keys of labels and samples differ, or expiry_seconds is shorter than labels take. no_embedding and "
        "no_quorum: a party is away, or has other keys.",
    ),
    Alert(
        "StreamflLearningStands",
        stopped("learnt_total", "embeddings_total"),
        0,
        "critical",
        "{{ $labels.group }} gets embeddings and learns from none any more.",
        "The model stands still. It is told after three of the times in which it usually learnt: a quarter of an hour, three hours "
        "or three days.",
        "Look at labels first, then at embeddings by party. streamfl_forgotten_entities_total says what never came, and "
        "streamfl_withheld_labels_total whether budgets are spent.",
    ),
    Alert(
        "StreamflPredictedUnlearnt",
        f"{increased('predictions_total', 60)} > 0 and {increased('learnt_total', 7 * 24 * 60)} == 0",
        60,
        "warning",
        "{{ $labels.group }} predicts with a model that has learnt nothing for a week.",
        "If it never learnt, its predictions are those of parameters that were drawn at random.",
        "Look whether labels come under the keys of the samples, and whether all parties show their entities.",
    ),
    Alert(
        "StreamflBelowQuorum",
        f"{increased('learnt_below_quorum_total', 60)} > 0.1 * {increased('learnt_total', 60)}",
        30,
        "warning",
        "{{ $labels.group }} learns one in ten from fewer parties than learning.quorum.",
        "What the missing parties know of these entities is not used.",
        "Look at the panel of embeddings by party. If a party does not know every entity, and is not meant to, lower "
        "learning.quorum.",
    ),
    Alert(
        "StreamflTwoSpeak",
        f"{increased('superseded_embeddings_total', 60)} > 0",
        0,
        "critical",
        "Two speak for one party of {{ $labels.federation }}.",
        "A second process with another group, or a stranger, sends embeddings in a party's name.",
        "Look at who may write to the topic of embeddings, and whether each party's processes have one role.group. Give members "
        "keys.",
    ),
    Alert(
        "StreamflStepsRefused",
        f"{increased('refused_steps_total', 15)} > 0",
        0,
        "warning",
        "Steps of {{ $labels.group }} would have made a parameter infinite.",
        "The step was not taken, so the model is as it was. It does not learn from such samples.",
        "Lower learning.learning_rate, or bring the inputs to about -1 to 1.",
    ),
)
