"""What somebody has to look after in vertical federations."""

from streamfl.alerts import MEMBER, Alert, increased

__all__ = ["ALERTS"]

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
        f"max by ({MEMBER}) (streamfl_privacy_mu) > 0.9 * max by ({MEMBER}) (streamfl_privacy_budget_mu)"
        f" or max by ({MEMBER}) (streamfl_label_mu) > 0.9 * max by ({MEMBER}) (streamfl_label_budget_mu)",
        0,
        "warning",
        "{{ $labels.group }} has spent nine tenths of an entity's privacy budget.",
        "Soon nothing more is sent about this entity. Others go on.",
        "Nothing is broken. If many entities come to this, each is asked about too often: fewer epochs, or more noise "
        "from the beginning.",
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
