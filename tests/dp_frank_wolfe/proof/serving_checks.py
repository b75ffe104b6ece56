"""What must hold of predictions between fits, whatever happened: which parts are sent, their values, and what
is published."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from dp_frank_wolfe.proof.observed_messages import messages_of, names_by_window
from dp_frank_wolfe.proof.oracle import numbers_of, place_of, weights_of
from dp_frank_wolfe.proof.scenario import NAME, DPFrankWolfeScenario, S
from numpy.typing import NDArray

from streamfl.dp_frank_wolfe.learning.means import intercept
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.messages import (
    Entities,
    FittedModel,
    Frozen,
    Message,
    Partial,
    Prediction,
    read_content,
)
from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE, Bounds, whole_row
from streamfl.dp_frank_wolfe.serving.partials import PartialPlan
from streamfl.privacy.integer_distribution import discrete_gaussian
from streamfl.privacy.release_bits import Release, release_bits
from streamfl.runtime.kinds import find_kind
from streamfl.simulation.vertical.members import samples_topic
from streamfl.testing.faults.cluster import FaultyBus
from streamfl.testing.faults.observed_messages import require

__all__ = ["check_parts_of_entities", "check_serving", "prediction_cost"]

Floats = NDArray[np.float64]
By = Mapping[str, Sequence[Message]]
# Error from rounding weights to whole numbers.
ROUNDING = 1e-8
MODEL = b"model/0"
VERSION_BYTES = 8


@dataclass(frozen=True)
class _Row:
    """A record of columns. at: when it was written. columns: as whole numbers."""

    at: float
    entity: str
    columns: NDArray[np.int16]


def check_serving(bus: FaultyBus, chosen: DPFrankWolfeScenario, asks: By, releases: By) -> None:
    """Checks that each record that came after a model has its part, of that row and model, and each entity
    its predictions."""
    told = {party: _parts(own) for party, own in releases.items()}
    published = [
        msgspec.json.decode(record.value or b"", type=Prediction) for record in _predictions(bus, chosen)
    ]
    if chosen.of(S).serving.mode == "off":
        require(not any(told.values()) and not published, "predictions were made, and serving is off")
        return
    for party in chosen.parties:
        _check_party(bus, chosen, party, told[party], asks[party], releases[party])
    last = max((one.window for one in _of(asks[chosen.parties[0]], "model")), default=0)
    _check_published(chosen, told, published, last, asks, releases)


def check_parts_of_entities(bus: FaultyBus, chosen: DPFrankWolfeScenario) -> None:
    """Checks that fits and known parts of an entity are within its budget. Parts that were sent and never
    committed count."""
    public = Public(chosen.of(chosen.parties[0]))
    if chosen.of(S).serving.mode != "private" or not public.settings.privacy.is_private:
        return
    for party in chosen.parties:
        asks, releases = (messages_of(bus, f"{NAME}.{party}.{kind}") for kind in ("asks", "releases"))
        fits = Counter(
            name for names in names_by_window(asks, releases, chosen.rows).values() for name in names
        )
        for entity, count in Counter(entity for entity, _, _ in chosen.observed.parts[party]).items():
            spent = count * public.prediction_cost(party) + fits[entity] * public.fit_cost(party)
            what = f"{party}: {count} parts of predictions of {entity} are known and {fits[entity]} fits"
            require(spent <= public.party_cost(party) * (1 + ROUNDING), f"{what}, which is beyond its budget")


def prediction_cost(public: Public, party: str) -> float:
    """Cost that an entity is charged for a part of a prediction."""
    return public.prediction_cost(party) if public.settings.serving.mode == "private" else 0.0


def _predictions(bus: FaultyBus, chosen: DPFrankWolfeScenario) -> Iterator[Any]:
    outputs = find_kind(chosen.of(S).role.kind).channels(chosen.of(S)).outputs
    return bus.read(outputs["predictions"]) if "predictions" in outputs else iter(())


def _of(messages: Sequence[Message], kind: str) -> list[Message]:
    return [one for one in messages if one.kind == kind]


def _parts(messages: Sequence[Message]) -> list[Partial]:
    """The parts in the order of their numbers, which have to be 1, 2, 3 and so on."""
    own = _of(messages, "partial")
    numbers = [one.iteration for one in own]
    require(numbers == list(range(1, len(own) + 1)), f"parts of predictions are numbered {numbers[:20]}")
    return [read_content(one.content, Partial) for one in own]


def _check_party(
    bus: FaultyBus,
    chosen: DPFrankWolfeScenario,
    party: str,
    parts: Sequence[Partial],
    asks: Sequence[Message],
    releases: Sequence[Message],
) -> None:
    """Checks the parts: those of all records after some first one, in order, as often as an entity may be
    predicted."""
    rows, known = _rows(bus, chosen, party), _models_in_state(bus, chosen, party)
    require(bool(known) or not parts, f"{party} tells parts of predictions, and has no model")
    if not known:
        return
    models = {
        one.window: weights_of(read_content(one.content, FittedModel), chosen.columns[party])
        for one in _of(asks, "model")
    }
    versions = [part.model for part in parts]
    require(
        versions == sorted(versions),
        f"{party}: parts are of models {versions[:20]}, of an older one after a newer one",
    )
    lenient = _often_announced(chosen, releases)
    surely = sum(row.at <= known[0][0] for row in rows)
    # Records written before the model was remembered may have been read before or after the model.
    failures = [
        _apart(chosen, party, rows[start:], parts, known, models, lenient) for start in range(surely + 1)
    ]
    require("" in failures, f"{party}: {failures[-1]}")


def _apart(
    chosen: DPFrankWolfeScenario,
    party: str,
    rows: Sequence[_Row],
    parts: Sequence[Partial],
    known: Sequence[tuple[float, int]],
    models: Mapping[int, Floats],
    lenient: Collection[str],
) -> str:
    """How the parts differ from the parts of these records, in words. Empty: not at all."""
    serving = chosen.of(S).serving
    most = serving.predictions if serving.mode == "private" else math.inf
    times: Counter[str] = Counter()
    left = list(parts)[::-1]
    unread = chosen.permanent_fault is not None and (samples_topic(party), 0) in chosen.permanent_fault.places
    for row in rows:
        if not left and unread:
            # No worker reads what comes after the fault.
            return ""
        if times[row.entity] >= most:
            continue
        if (
            left
            and left[-1].entity == row.entity
            and not (wrong := _wrong(chosen, party, row, left[-1], known, models))
        ):
            left.pop()
            times[row.entity] += 1
        elif row.entity not in lenient:
            place = f"part {len(parts) - len(left) + 1}"
            if left and left[-1].entity == row.entity:
                return f"{place}, of {row.entity}, {wrong}"
            return (
                f"{place} is of {left[-1].entity if left else 'nobody'}, and the record of {row.entity} is "
                "next"
            )
    return f"{len(left)} parts of predictions are of no record" if left else ""


def _wrong(
    chosen: DPFrankWolfeScenario,
    party: str,
    row: _Row,
    part: Partial,
    known: Sequence[tuple[float, int]],
    models: Mapping[int, Floats],
) -> str:
    """What is wrong with a part of this record, in words. Empty: nothing."""
    least = max((version for at, version in known if at < row.at), default=1)
    if not least <= part.model <= max(models):
        return f"is of model {part.model}, and {least} was known"
    x, cost = models[part.model], prediction_cost(Public(chosen.of(party)), party) or math.inf
    exact, length = float(row.columns.astype(np.float64) @ x) / FEATURE_ONE, float(np.abs(x).sum())
    plan = PartialPlan.of(x, cost)
    if plan.noise is not None and part.value != _with_noise(chosen, party, row, part.model, plan):
        return f"is {part.value:g}, which is not {exact:g} with the noise of its row"
    if plan.noise is None and abs(part.value - exact) > ROUNDING * length:
        return f"is {part.value:g}, where {exact:g} was due"
    if part.before is not None:
        length_before = float(np.abs(models[part.model - 1]).sum())
        exact_before = float(row.columns.astype(np.float64) @ models[part.model - 1]) / FEATURE_ONE
        if plan.noise is not None or abs(part.before - exact_before) > ROUNDING * length_before:
            return (
                f"is {part.before:g} with the model before, where {exact_before:g} was due, and nothing with "
                "noise"
            )
    return ""


def _with_noise(
    chosen: DPFrankWolfeScenario, party: str, row: _Row, version: int, plan: PartialPlan
) -> float:
    """The part of a row, with the noise that follows from the party's secret, the row, the weights and the
    entity."""
    assert plan.noise is not None
    content = row.columns.astype("<i2").tobytes() + plan.weights.astype("<i8").tobytes()
    digest = hashlib.sha256(b"streamfl partial/1" + content).digest()
    place = place_of(chosen, party, version)
    given = (plan.noise.variance, plan.noise.unit, plan.bits, row.entity)
    release = Release(place.ledger, place.federation, party, version, 0, "prediction", given, digest)
    # Not by the noise's own method: the observer notes what that draws.
    drawn = int(discrete_gaussian(plan.noise.variance).draw(release_bits(place.secret, release, 1))[0])
    rounded = (plan.exact(row.columns) + plan.noise.unit // 2) // plan.noise.unit
    return math.ldexp(float((rounded + drawn) * plan.noise.unit), -plan.bits)


def _rows(bus: FaultyBus, chosen: DPFrankWolfeScenario, party: str) -> list[_Row]:
    settings, columns = chosen.of(party), chosen.columns[party]
    bounds = Bounds(np.full(columns, settings.bounds.centre), np.full(columns, settings.bounds.bound))
    found = []
    for record in bus.read(samples_topic(party)):
        content = msgspec.msgpack.decode(record.value or b"")
        values = whole_row(np.array(numbers_of(content["x"], columns)), bounds)
        found.append(_Row(record.timestamp, (record.key or b"").decode(), values))
    return found


def _models_in_state(bus: FaultyBus, chosen: DPFrankWolfeScenario, party: str) -> list[tuple[float, int]]:
    """When the party remembered each model: times and versions."""
    settings = chosen.of(party)
    state = find_kind(settings.role.kind).channels(settings).changelogs["state"]
    records = [record for record in bus.read(state) if record.key == MODEL and record.value]
    return [(one.timestamp, int.from_bytes((one.value or b"")[:VERSION_BYTES], "little")) for one in records]


def _often_announced(chosen: DPFrankWolfeScenario, releases: Sequence[Message]) -> set[str]:
    """Entities announced for more fits than ``window.fits``: what predictions left of their budget was to
    pay."""
    names = (name for one in _of(releases, "entities") for name in read_content(one.content, Entities).names)
    fits = int(chosen.sections["window"]["fits"])
    return {name for name, count in Counter(names).items() if count > fits}


def _check_published(
    chosen: DPFrankWolfeScenario,
    told: Mapping[str, Sequence[Partial]],
    published: Sequence[Prediction],
    last: int,
    asks: By,
    releases: By,
) -> None:
    """Checks predictions: each sums one part of each party, for one entity and model. No part counts twice or
    waits in vain.

    last: version of the latest model. Parts with a model older than the one before it may have come too late.
    """
    settings = chosen.of(S)
    parts: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for party, own in told.items():
        for one in own:
            parts[one.entity, one.model][party].append(one.value)
            if one.before is not None:
                parts[one.entity, one.model - 1][party].append(one.before)
    by_party = {party: Counter(one.entity for one in own) for party, own in told.items()}
    for entity, count in Counter(one.entity for one in published).items():
        most = min(by_party[party][entity] for party in chosen.parties)
        require(count <= most, f"{entity}: {count} predictions of {most} parts of a party")
    counts = Counter((one.entity, one.model) for one in published)
    # A part that is sent with two models is used with one of them.
    beside = (-1, 0, 1) if settings.serving.mode == "exact" else (0,)
    for place, of in parts.items():
        most = min(len(of[party]) for party in chosen.parties)
        where = f"{place[0]}, model {place[1]}"
        require(counts[place] <= most, f"{where}: {counts[place]} predictions of {most} parts of a party")
        used = sum(counts[place[0], place[1] + step] for step in beside)
        lost = used == 0 and most > 0 and place[1] >= last - 1
        require(not lost, f"{where}: all parties told a part, and nothing is published")
    covered = settings.serving.mode == "private" and settings.privacy.is_private
    intercepts = _intercepts(chosen, asks, releases)
    for prediction in published:
        found = parts.get((prediction.entity, prediction.model), {})
        terms = itertools.product(
            intercepts[prediction.model], *(found.get(party, []) for party in chosen.parties)
        )
        sums = {settings.bounds.label_centre + settings.bounds.label_bound * math.fsum(one) for one in terms}
        where = f"{prediction.entity}, model {prediction.model}"
        # The intercept's own sums are added in another order.
        near = any(math.isclose(prediction.prediction, one, rel_tol=1e-9, abs_tol=1e-9) for one in sums)
        require(near, f"{where}: {prediction.prediction:g} is published, parts sum to {sorted(sums)[:5]}")
        require(prediction.private == covered, f"{where}: private is {prediction.private}")


def _intercepts(chosen: DPFrankWolfeScenario, asks: By, releases: By) -> dict[int, list[float]]:
    """Possible intercepts, by version: the label's mean, weighted by precision, minus the columns' means
    times the weights.

    Several where a party was asked nothing after it froze its window: only the server knows whether its means
    came in time."""
    public, found = Public(chosen.of(S)), {}
    for model in _of(asks[chosen.parties[0]], "model"):
        window, plans, told, x, certain = model.window, {}, {}, {}, []
        for party in chosen.parties:
            frozen = (one for one in _of(releases[party], "frozen") if one.window == window)
            content = next((read_content(one.content, Frozen).means for one in frozen), b"")
            if not content:
                continue
            plan = plans[party] = public.means_plan(party)
            told[party] = plan.means(np.frombuffer(content, "<i8").astype(np.int64), chosen.rows)
            own = next(one for one in _of(asks[party], "model") if one.window == window)
            x[party] = weights_of(read_content(own.content, FittedModel), plan.columns)
            asked = {one.kind for one in asks[party] if one.window == window}
            certain += [party] if asked - {"manifest", "model"} else []
        found[window] = [
            intercept({party: told[party] for party in some}, plans, x)
            for count in range(len(certain), len(told) + 1)
            for some in itertools.combinations(told, count)
            if set(certain) <= set(some)
        ]
    return found
