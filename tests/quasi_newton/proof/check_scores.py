"""Checks of predictions: each entity is scored once a version of the model, and probabilities follow from
held-out entities."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import product

import msgspec
import numpy as np
from numpy.typing import NDArray
from quasi_newton.proof.oracle import Expected, scored_with
from quasi_newton.proof.scenario import NAME, QuasiNewtonScenario
from scipy.special import expit

from streamfl.quasi_newton.scoring.predictions import Prediction
from streamfl.simulation.vertical.members import LABELS
from streamfl.testing.faults.cluster import FaultyBus
from streamfl.testing.faults.observed_messages import require

__all__ = ["check_scores"]

Floats = NDArray[np.float64]
# Tolerances of outputs, whose sums are rounded in another order here; of probabilities; of a mean that has to
# be 0.
EQUAL_OUTPUTS, EQUAL_CHANCES, STATIONARY = 1e-9, 1e-6, 1e-6
# If outputs differ by less, no line through points and outputs can be fitted.
TELLING = 1e-3


def check_scores(
    bus: FaultyBus, chosen: QuasiNewtonScenario, outcomes: Sequence[Expected], common: set[str]
) -> None:
    """Check outputs, points and probabilities of all versions. outcomes: of all trainings. common: entities
    all parties know."""
    found = [
        msgspec.json.decode(record.value or b"", type=Prediction)
        for record in bus.read(f"{NAME}.predictions")
    ]
    by_version: dict[int, list[Prediction]] = defaultdict(list)
    revisions: dict[str, int] = defaultdict(int)
    for one in found:
        require(one.entity in common, f"{one.entity} is scored, and not known to all")
        require(
            outcomes[0].run <= one.model <= outcomes[-1].run,
            f"{one.entity} is scored with model {one.model} of {[model.run for model in outcomes]}",
        )
        text = f"{one.entity}: revision {one.revision} follows {revisions[one.entity]} others"
        require(one.revision == revisions[one.entity], text)
        revisions[one.entity] += 1
        by_version[one.model].append(one)
    require(
        len(by_version) <= chosen.guest.scoring.versions,
        f"{len(by_version)} versions of the model were answered for",
    )
    for version, own in sorted(by_version.items()):
        check_once(version, own)
        place = version - outcomes[0].run
        check_outputs(chosen, outcomes[place], own)
        # An entity that joins a batch of the next training before it is scored is not used to judge the
        # model.
        check_probabilities(
            bus, chosen, version, own, [set(model.names) for model in outcomes[place : place + 2]]
        )
    last = outcomes[-1].run
    unread = chosen.permanent_fault is not None and chosen.permanent_fault.places
    if not chosen.settled or unread or len(outcomes) > chosen.guest.scoring.versions:
        return
    missing = common & set(chosen.first) - {one.entity for one in by_version[last]}
    require(not missing, f"{len(missing)} entities are not scored with the last model: {sorted(missing)[:3]}")
    judged = {
        one.entity: chosen.labels[one.entity][-1] for one in by_version[last] if one.entity in chosen.labels
    }
    judged = {entity: label for entity, label in judged.items() if entity not in outcomes[-1].names}
    if len(judged) >= chosen.guest.scoring.calibration_entities and len(set(judged.values())) == 2:
        bare = {one.entity for one in by_version[last]} - {
            one.entity for one in by_version[last] if one.probability is not None
        }
        require(not bare, f"{len(bare)} entities have no probability with the last model: {sorted(bare)[:3]}")


def check_once(version: int, own: Sequence[Prediction]) -> None:
    """Check that an entity is scored once, and once more when there are probabilities."""
    shown: dict[str, list[bool]] = defaultdict(list)
    for one in own:
        shown[one.entity].append(one.probability is not None)
    twice = {entity: told for entity, told in shown.items() if told not in ([False], [True], [False, True])}
    require(not twice, f"scored twice with model {version}: {sorted(twice.items())[:3]}")
    calibrated = [one.probability is not None for one in own]
    require(
        calibrated == sorted(calibrated),
        f"model {version}: an entity has no probability after others had one",
    )


def check_outputs(chosen: QuasiNewtonScenario, model: Expected, own: Sequence[Prediction]) -> None:
    """Check that each output is the sum of the parties' parts. If columns changed, parties may have used
    different versions."""
    for one in own:
        parts = [
            [
                float(scored_with(chosen, model, party, np.array([columns]))[0])
                for columns in chosen.known[party, one.entity]
            ]
            for party in chosen.parties
        ]
        apart = min(abs(one.output - sum(chosen_parts)) for chosen_parts in product(*parts))
        text = (
            f"{one.entity}: the output with model {one.model} is {apart:g} from the sum of the parties' parts"
        )
        require(apart < EQUAL_OUTPUTS, text)


def check_probabilities(
    bus: FaultyBus,
    chosen: QuasiNewtonScenario,
    version: int,
    own: Sequence[Prediction],
    learnt: Sequence[set[str]],
) -> None:
    """Check that probabilities are Platt's for entities that were not learnt from, with the labels known at
    some time.

    learnt: entities of batches. One of these sets was in batches when all others were scored.
    """
    calibrated = [one for one in own if one.probability is not None and one.score is not None]
    outputs = {one.entity: one.output for one in own}
    if not calibrated:
        return
    scale, numbers = chosen.guest.scoring.scale, np.array([one.output for one in calibrated])
    points = np.array([one.score for one in calibrated], dtype=np.float64)
    log_odds = (scale.offset - points) / scale.factor
    if np.ptp(numbers) < TELLING:
        return
    slope, intercept = np.polyfit(numbers, log_odds, 1)
    chances = expit(intercept + slope * numbers)
    apart = np.abs(chances - np.array([one.probability for one in calibrated])).max()
    require(
        apart < EQUAL_CHANCES, f"model {version}: probabilities are {apart:g} from those that the points tell"
    )
    least = chosen.guest.scoring.calibration_entities
    is_platts = any(
        _is_stationary(
            intercept, slope, np.array([outputs[name] for name in labels]), np.array(list(labels.values()))
        )
        for names in learnt
        for labels in _labels_by_time(bus, outputs.keys() - names)
        if len(labels) >= least
    )
    require(
        is_platts,
        f"model {version}: probabilities sigma({intercept:g} + {slope:g} u) are no held-out entities'",
    )


def _labels_by_time(bus: FaultyBus, judged: Collection[str]) -> Iterator[dict[str, int]]:
    """Labels of the entities that a model is judged by, as they were after each label that came."""
    labels: dict[str, int] = {}
    for record in bus.read(LABELS):
        content = msgspec.msgpack.decode(record.value or b"")
        if content["id"] in judged and "y" in content:
            labels[content["id"]] = content["y"]
            yield dict(labels)


def _is_stationary(intercept: float, slope: float, outputs: Floats, labels: Floats) -> bool:
    """Whether Platt's likelihood of these labels, 0 and 1, has its maximum here. It is concave, so its slope
    is 0 only there."""
    ones, zeros = float(np.sum(labels)), float(np.sum(1 - labels))
    if not ones or not zeros:
        return False
    targets = np.where(labels == 1, (ones + 1) / (ones + 2), 1 / (zeros + 2))
    left = expit(intercept + slope * outputs) - targets
    return bool(abs(left.mean()) < STATIONARY and abs((left * outputs).mean()) < STATIONARY)
