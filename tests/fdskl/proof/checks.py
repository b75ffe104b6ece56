"""What must hold for a federation of masked sums, whatever happened: checked from its topics, with the
secrets of all parties."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import islice, pairwise

import msgspec
import numpy as np
from fdskl.proof.observed_messages import decode_prediction
from fdskl.proof.oracle import Oracle, RememberedModel, models_of
from fdskl.proof.replay import check_learning
from fdskl.proof.scenario import LABELS, FdsklScenario

from streamfl.fdskl.learning.schedule import ends_of_iterations, labels_wanted
from streamfl.fdskl.messages import Prediction
from streamfl.runtime.bus import Bus
from streamfl.testing.faults.cluster import FaultyBus
from streamfl.testing.faults.observed_messages import latest, require

__all__ = ["check_outcome"]


def check_outcome(bus: FaultyBus, chosen: FdsklScenario) -> None:
    """No record was refused, no mask was used twice, predictions are what the model says, and every label was
    learnt once."""
    for member in chosen.members:
        letters = list(bus.read(chosen.of(member).dead_letters))
        require(
            not letters,
            f"{member}: {len(letters)} records were refused: {[letter.headers for letter in letters[:1]]}",
        )
    require(not chosen.observed.reused, f"{chosen.observed.reused[:1]}")
    unmasked = (
        chosen.settings.aggregation.mask == "one-time"
        and chosen.observed.announced
        and not chosen.observed.hidden
    )
    require(not unmasked, "rounds were announced, and nothing was masked")
    found: dict[tuple[int, str], list[Prediction]] = defaultdict(list)
    for record in bus.read(f"{chosen.name}.predictions"):
        prediction = decode_prediction(record)
        found[record.partition, prediction.entity].append(prediction)
    check_predicted(bus, chosen, found)
    if not chosen.once:
        return
    models = models_of(bus, chosen)
    oracle = Oracle(bus, chosen)
    for (partition, entity), predictions in found.items():
        check_revisions(chosen, entity, predictions)
        check_outputs(chosen, oracle, models[partition], partition, predictions)
    check_labels(bus, chosen)
    for partition, own in models.items():
        if own:
            check_features(chosen, own[max(own)])
        if chosen.synchronous:
            check_learning(chosen, oracle, partition, own)


def check_predicted(bus: Bus, chosen: FdsklScenario, found: dict[tuple[int, str], list[Prediction]]) -> None:
    """Each entity that the active party saw was predicted, and no other."""
    predicted, expected = {entity for _, entity in found}, chosen.to_be_predicted(bus)
    require(expected <= predicted, f"never predicted: {sorted(expected - predicted)[:3]}")
    seen = {entity for party, entity in chosen.columns if party == chosen.active}
    require(predicted <= seen, f"predicted, but never seen: {sorted(predicted - seen)[:3]}")


def check_revisions(chosen: FdsklScenario, entity: str, predictions: list[Prediction]) -> None:
    """An entity's predictions are counted from 0 without gaps, and anew when it comes again after it was
    learnt from."""
    numbers = [prediction.revision for prediction in predictions]
    begins = [place for place, number in enumerate(numbers) if number == 0]
    require(begins[:1] == [0], f"{entity}: revisions {numbers}")
    for begin, end in pairwise([*begins, len(numbers)]):
        require(numbers[begin:end] == list(range(end - begin)), f"{entity}: revisions {numbers}")
    again = len(chosen.columns[chosen.active, entity]) if entity in chosen.labels or chosen.forgets else 1
    require(len(begins) <= again, f"{entity}: revisions {numbers}, and it came {again} times")
    # New or late columns of a party give one more prediction, and so do the active party's own columns.
    most = sum(len(chosen.columns.get((party, entity), ())) for party in chosen.parties)
    require(chosen.forgets or len(numbers) <= most, f"{entity}: revisions {numbers} of {most} samples")


def check_outputs(
    chosen: FdsklScenario,
    oracle: Oracle,
    models: dict[int, RememberedModel],
    partition: int,
    predictions: list[Prediction],
) -> None:
    """Each prediction is what the model of its version gives for columns that the parties had.

    The last one is from the latest columns, unless a label came: then the entity is not predicted again.
    """
    settles = chosen.settings.alignment.revise and not chosen.forgets and chosen.permanent_fault is None
    for number, prediction in enumerate(predictions):
        what = f"{prediction.entity}, revision {prediction.revision} by version {prediction.model}"
        model = models.get(prediction.model)
        if prediction.model == 0:
            require(prediction.score == 0.0, f"{what}: {prediction.score:g}, nothing was learnt")
        if prediction.model == 0 or model is None:
            # If one commit made two versions, the first is not stored anywhere.
            continue
        latest_only = settles and number == len(predictions) - 1 and prediction.entity not in chosen.labels
        tolerance, nearest = oracle.tolerance(model), math.inf
        for known, newest, features in oracle.features(
            partition, prediction.entity, model, model.first, len(model.alphas)
        ):
            if sum(known) == prediction.parties and (newest or not latest_only):
                nearest = min(nearest, abs(float(features @ model.alphas) - prediction.score))
        which = "the latest columns" if latest_only else "any columns"
        require(
            nearest <= tolerance,
            f"{what}: {nearest:g} from what {which} of {prediction.parties} parties give",
        )


def check_labels(bus: FaultyBus, chosen: FdsklScenario) -> None:
    """Every label that was written is counted once, and every whole block of them is one iteration."""
    if chosen.forgets:
        return
    for place, party in enumerate(names := chosen.settings.federation.active_parties):
        own = [entity for entity in chosen.labels if int(entity[1:]) % len(names) == place]
        _check_labels_of(bus, chosen, party, own)


def _check_labels_of(bus: FaultyBus, chosen: FdsklScenario, party: str, entities: list[str]) -> None:
    state, several = latest(bus, f"{chosen.name}.{party}.state"), len(chosen.settings.federation.actives) > 1
    written = Counter(bus.partition_of(entity.encode(), chosen.partitions) for entity in entities)
    for partition in range(chosen.partitions):
        counts = state.get((partition, b"labels"))
        labels, fresh = (0, 0) if counts is None else msgspec.msgpack.decode(counts)[:2]
        fewer = chosen.absent or any(
            chosen.is_hidden(topic, partition) for topic in (LABELS, f"samples-{chosen.active}")
        )
        as_written = labels <= written[partition] if fewer else labels == written[partition]
        require(
            as_written, f"partition {partition}: {labels} labels were learnt, {written[partition]} written"
        )
        model = state.get((partition, b"model"))
        version, bandwidth = (
            (0, 0.0) if model is None else [msgspec.msgpack.decode(model)[place] for place in (0, 5)]
        )
        if several and (turns := state.get((partition, b"turns"))) is not None:
            # Only the party's own iterations.
            version = msgspec.msgpack.decode(turns)[3]
        size = chosen.settings.learning.block_instances
        first = chosen.settings.learning.first_block
        learnt = 0 if not version else next(islice(ends_of_iterations(first, size), version - 1, None))
        told = (
            f"partition {partition}: {version} iterations of {first} to {size} in {labels} labels leave "
            f"{fresh}"
        )
        require(labels - learnt == fresh, told)
        size = labels_wanted(learnt, first, size)
        known = bandwidth or chosen.settings.learning.bandwidth is not None
        is_learnt = fresh < size or not known or chosen.absent is not None
        require(is_learnt, f"partition {partition}: {fresh} labels wait, {size} are an iteration")


def check_features(chosen: FdsklScenario, model: RememberedModel) -> None:
    """As many features were drawn, kept and dropped as the iterations say."""
    learning = chosen.settings.learning
    block = learning.block_features
    limit = learning.features_limit // learning.block_features * learning.block_features
    kept = dropped = 0
    for version in range(model.version):
        if learning.solver == "sgd":
            drops = kept >= limit
            kept, dropped = min(limit, kept + block), dropped + block * drops
        elif kept < limit:
            kept += block * min(learning.visits, (limit - kept) // block)
        elif learning.sweeps is not None and version % math.ceil(learning.sweeps / learning.visits) == 0:
            dropped += block
    found = model.first, len(model.alphas), model.dropped
    expected = dropped, kept, dropped
    require(found == expected, f"version {model.version}: first, kept, dropped are {found}, not {expected}")
    require(bool(np.isfinite(model.alphas).all()), f"version {model.version}: coefficients are not finite")
