"""The metrics of VAFL: of a party, and of the coordinator with its releases of labels and its scores."""

from __future__ import annotations

from streamfl.contract.measurement import Counts, counter, gauge
from streamfl.privacy.accountant import DELTA
from streamfl.roles.recent import WINDOW

__all__ = ["CoordinatorMetrics", "LabelMetrics", "PartyMetrics", "ScoreMetrics"]

REFUSED_STEPS = "Steps not taken because a parameter would have become infinite"
LAST = f"the last {WINDOW} labels since the worker's start"
ENTITY_MU = "mu of the entity with the largest releases (Gaussian differential privacy)"


class PartyMetrics(Counts):
    """Metrics of a party, of all its partitions."""

    samples = counter("Samples taken", headline=True)
    embeddings = counter("Embeddings sent", headline=True)
    embeddings_again = counter("Embeddings sent because the coordinator requested newer ones")
    gradients = counter("Gradients learnt from", headline=True)
    steps = counter("Steps taken", headline=True)
    refused_steps = counter(REFUSED_STEPS)
    ignored_replies = counter(
        "Replies to an embedding that is forgotten or superseded",
        reason=("unknown", "superseded"),
        headline=True,
    )
    forgotten_entities = counter(
        "Entities forgotten without a gradient: by age, or to make room", reason=("expired", "displaced")
    )
    entities = gauge("Entities whose gradient has not come")
    waiting_samples = gauge("Samples that wait until fewer are on their way", headline=True)
    withheld_embeddings = counter(
        "Embeddings not sent or not learnt from: budget spent, no room in the ledger, or requested too often",
        reason=("budget", "ledger", "requests"),
    )
    missing_entities = gauge(
        "Entities whose gradient the first step still waits for, of all partitions", headline=True
    )
    privacy_mu_per_release = gauge(
        f"{ENTITY_MU}, from its own embeddings only: what others' embeddings reveal about it is not counted, "
        "so this is no guarantee"
    )
    privacy_budget_mu = gauge("mu that no entity may exceed")
    privacy_mu = gauge(ENTITY_MU)
    privacy_epsilon = gauge(f"epsilon of that mu at delta = {DELTA:g}")


class CoordinatorMetrics(Counts):
    """Metrics of the coordinator, of all its partitions."""

    embeddings = counter("Embeddings taken", headline=True)
    predictions = counter("Entities predicted", headline=True)
    revised_predictions = counter("Repeated predictions of an entity, made when another embedding came")
    labels = counter("Labels taken", headline=True)
    learnt = counter("Times that an entity was learnt from", headline=True)
    learnt_below_quorum = counter(
        "Times that an entity was learnt from although fewer parties than learning.quorum had sent it in time"
    )
    gradients = counter("Gradients sent", headline=True)
    requests = counter("Newer embeddings that were requested")
    outdated_embeddings = counter(
        "Embeddings above learning.max_staleness; their party's mean was used in the gradient instead"
    )
    steps = counter("Steps of the head's own parameters")
    refused_steps = counter(REFUSED_STEPS)
    ignored_embeddings = counter("Repeated embeddings", reason=("duplicate",))
    superseded_embeddings = counter(
        "Embeddings with a number below one that was accepted just before: two processes send for one party"
    )
    duplicate_labels = counter("Labels of entities that already had one; the first one counts")
    forgotten_entities = counter(
        "Forgotten entities, by reason: what never came, no room, withheld, or learnt from but not sent by "
        "all",
        reason=("no_quorum", "no_label", "no_embedding", "displaced", "learnt", "withheld"),
    )
    silent_parties = counter("Requests for a newer embedding without an answer", headline=True)
    entities = gauge("Entities that are stored", headline=True)
    lacking_entities = gauge(
        "Entities that are not learnt from: sent by enough parties but without a label, or with a label but "
        "not sent by enough parties",
        reason=("label", "embeddings"),
    )
    aged_embeddings = counter("Embeddings that gradients were computed from, counted once for each gradient")
    staleness_steps = counter(
        "Sum of the steps, as far as known here, that parties took since they made these embeddings"
    )
    staleness_largest = gauge("The largest such number of steps since the worker's start")
    staleness_largest_windowed = gauge(
        f"The largest such number of steps of the last {WINDOW} embeddings since the worker's start"
    )
    withheld_labels = counter(
        "Labels not answered and not learnt from: the label's budget is spent, or the ledger has no room",
        reason=("budget", "ledger"),
    )


class ScoreMetrics:
    """Metrics of the coordinator's predictions whose label came."""

    scored = counter("Labels of entities that had been predicted")
    loss_sum = counter(
        "Sum of the loss of the predictions made before the label, over the labels of streamfl_scored_total"
    )
    right_predictions = counter("These predictions that were correct")
    loss_windowed = gauge(f"Mean loss of the predictions made before the label, over {LAST}", headline=True)
    accuracy = gauge(f"Share of the predictions that were correct, over {LAST}")
    rmse_windowed = gauge(f"RMSE of these predictions over {LAST}, in the label's own unit", headline=True)


class LabelMetrics:
    """Metrics of the coordinator's releases of labels, if they have noise."""

    label_budget_mu = gauge("mu that no entity's label may exceed")
    label_mu = gauge("mu of the label with the largest releases (Gaussian differential privacy)")
    label_epsilon = gauge(f"epsilon of that mu at delta = {DELTA:g}")
