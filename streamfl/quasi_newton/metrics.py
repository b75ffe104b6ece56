"""The metrics of quasi-Newton: of every member, of parties, and of the coordinator."""

from __future__ import annotations

from streamfl.contract.measurement import Metric, counter, gauge
from streamfl.roles.partitioned_role import OutboxCounts

__all__ = [
    "CoordinatorMetrics",
    "GuestMetrics",
    "HeldOutMetrics",
    "HostMetrics",
    "MemberCounts",
    "PartyMetrics",
    "ScoringMetrics",
    "TrafficMetrics",
]

HELD_OUT = "of the current model on entities that it has not learnt from"


class MemberCounts(OutboxCounts):
    """What members count. Each has all of these counters."""

    samples = counter("Records of own columns that were accepted")
    labels = counter("Labels that were accepted")
    displaced_entities = counter("Entities that were dropped for newer ones")
    expired_entities = counter("Entities that were forgotten by age")
    ciphertexts_sent = counter("Ciphertexts in messages to other members, or the numbers in their place")
    iterations = counter("Iterations that were decided; at a party: steps that it took")
    decryptions = counter("Vectors that the coordinator has decrypted")
    refused_decryptions = counter(
        "Vectors that were not decrypted because another one was, for the same party and round"
    )
    implausible_openings = counter("Decrypted vectors that numbers within the public bounds cannot give")
    refused_alignments = counter("Points for an alignment that were stored until it began, and are invalid")
    repeated_messages = counter("Messages that were repeated, or too late")
    trainings = counter("Trainings that gave a model")
    expired_batches = counter("Batches that were dropped for newer ones")
    failed_trainings = counter("Trainings that failed")
    questions = counter("Questions about entities without a score, asked by the guest or answered by a host")
    abandoned_questions = counter("Questions without an answer in time")
    closed_questions = counter(
        "Questions that a host did not answer, because it has answered for the allowed number of model "
        "versions"
    )
    answered_entities = counter("Entities for which a host sent its part of the output")
    unscored_entities = counter(
        "Entities without a score, because a part of the output is beyond the public bound or unknown"
    )
    predictions = counter("Predictions that were published")
    muted_rows = counter("Rows with own columns too far out to be learnt from, counted once a training")


def _phase(*meanings: str) -> Metric:
    """meanings: of each phase number."""
    listed = ", ".join(f"{number} {meaning}" for number, meaning in enumerate(meanings))
    return gauge(f"Phase of the training: {listed}", headline=True)


class PartyMetrics:
    """Metrics of a guest and of a host."""

    training = gauge("Number of the latest training", headline=True)
    phase = _phase(
        "waits for entities",
        "is ready",
        "compares entities",
        "waits for vectors",
        "waits for decrypted numbers from the coordinator",
        "waits for hosts' inner products",
        "waits for the decision",
        "has learnt a model",
        "has failed",
    )
    iteration = gauge("Iterations of the training that are done", headline=True)
    known_entities = gauge(
        "Entities with columns (at the guest also with a label), held out or not, as alignment.entities "
        "counts them",
        headline=True,
    )
    missing_entities = gauge("Entities that the first training still waits for at this party", headline=True)


class CoordinatorMetrics:
    """Metrics of the coordinator."""

    training = PartyMetrics.training
    phase = _phase(
        "waits for parties", "parties compare entities", "in a round", "has ended with a model", "has failed"
    )
    iteration = PartyMetrics.iteration
    epoch = gauge("Epochs of the training that are done", headline=True)
    loss = gauge("Mean of Taylor's loss over the latest epoch, NaN before", headline=True)
    pairs = gauge("Curvature pairs that are kept")
    skipped_pairs = gauge("Curvature pairs of the training that were rejected")


class TrafficMetrics:
    """Metrics of the latest iteration of which this process has sent every message."""

    iteration_ciphertexts = gauge(
        "Ciphertexts sent in the latest complete iteration, or the numbers in their place"
    )
    iteration_bytes = gauge("Bytes of messages sent in the latest complete iteration")


class ScoringMetrics:
    """Metrics of every party that scores."""

    model_version = gauge("The training of the current model")


class HostMetrics(ScoringMetrics):
    """Metrics of a host that scores."""

    model_versions_left = gauge("Model versions for which points may still be sent")


class HeldOutMetrics:
    """Metrics of the current model, in the order of
    :func:`streamfl.quasi_newton.rows.held_out.held_out_figures`."""

    held_out_auc = gauge(f"Area under the curve {HELD_OUT}")
    held_out_ks = gauge(f"Kolmogorov and Smirnov's distance {HELD_OUT}")
    held_out_log_loss = gauge(f"Log loss, after calibration, {HELD_OUT}")
    held_out_calibration_error = gauge(f"Mean distance of probability and share of label 1 {HELD_OUT}")


class GuestMetrics(ScoringMetrics):
    """Metrics of the guest's scoring."""

    timed_out_rounds = counter(
        "Rounds of questions about scores that a host did not answer in time; a training's rounds wait "
        "without a limit"
    )
    held_out_entities = gauge("Labelled entities that the current model has scored but not learnt from")
