"""A federation of masked sums under faults, by seed: its data and its processes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from fdskl.proof.observed_messages import Observed, decode_prediction

from streamfl.contract.seeding import rng_for
from streamfl.fdskl.config import WORKER, FdsklSettings
from streamfl.fdskl.party.role import FdsklParty
from streamfl.fdskl.tools.members import BETWEEN, labels_topic, members
from streamfl.runtime.bus import Bus
from streamfl.runtime.worker import Worker
from streamfl.simulation.vertical.members import LABELS, samples_topic
from streamfl.testing.faults.fault_rates import drawn_by, drawn_rates
from streamfl.testing.faults.federation import Reading
from streamfl.testing.faults.observed_messages import require
from streamfl.testing.faults.scenario import MembersScenario

__all__ = ["FOR_EVER", "LABELS", "FdsklScenario", "scenario", "scenario_of_several"]

FOR_EVER = 1e6
LAST_ENTITIES = 3


@dataclass(frozen=True)
class FdsklScenario(MembersScenario):
    """A federation of masked sums under faults.

    dimensions: columns of each party.
    columns: by party and entity, all columns that the party ever gets, in order.
    labels: by entity.
    synchronous: every party gets everything once and is waited for, so that each iteration is known.
    absent: the party that may stop sending.
    observed: what roles sent and used, whether it was committed or not.
    """

    settings: FdsklSettings
    dimensions: Mapping[str, int]
    columns: Mapping[tuple[str, str], Sequence[Sequence[float]]]
    labels: Mapping[str, float]
    synchronous: bool
    absent: str | None = None
    observed: Observed = field(default_factory=Observed)

    def __str__(self) -> str:
        learning = self.settings.learning
        alignment = self.settings.alignment
        aggregation = self.settings.aggregation
        forgets = f", forgotten after {alignment.expiry_seconds:.3g} s" if self.forgets else ""
        sweeps = "" if learning.sweeps is None else f", {learning.sweeps} sweeps"
        return (
            f"masked sums{', synchronous' if self.synchronous else ''}, {len(self.parties)} parties, "
            f"{self.active} is active, {aggregation.topology}, mask {aggregation.mask}, "
            f"{aggregation.frequencies} frequencies, {aggregation.circle_bits} bits, {learning.solver}, "
            f"{learning.loss}, {learning.kernel}, {learning.block_instances} x {learning.block_features}, at "
            f"most {learning.features_limit}{sweeps}, {self.settings.bus.processing_guarantee}, waits "
            f"{alignment.reply_seconds:.3g} s for columns, {aggregation.round_seconds:.3g} s for a "
            f"round{forgets}, {self.partitions} partitions, {dict(self.workers)} processes, "
            f"{len(self.columns)} samples, {len(self.labels)} labels; {self.faults}"
        )

    @property
    def once(self) -> bool:
        return self.settings.bus.processing_guarantee == "exactly_once"

    @property
    def forgets(self) -> bool:
        """Whether members forget entities within the run."""
        return self.settings.alignment.expiry_seconds < FOR_EVER

    @property
    def name(self) -> str:
        return self.settings.federation.name

    @property
    def active(self) -> str:
        return self.settings.federation.active_party

    @property
    def parties(self) -> Sequence[str]:
        return self.settings.federation.parties

    def of(self, party: str) -> FdsklSettings:
        """The settings of a party."""
        return self.settings.model_copy(update=members(self.settings.federation, self.dimensions)[party])

    @property
    def repeatable(self) -> Collection[str]:
        return {f"{self.name}.{party}.{kind}" for party in self.parties for kind in BETWEEN}

    def prepare(self, worker: Worker) -> None:
        """Draw from the seed what a real process draws at random. It differs in each life."""
        role = cast(FdsklParty, worker.role)
        lives = self.observed.lives

        def entropy() -> bytes:
            lives.append(role.settings.required_party())
            return rng_for(self.seed, "simulation", "life", len(lives)).bytes(32)

        role.given = replace(role.given, secret=entropy(), entropy=entropy)

    def check_bounds(self, worker: Worker) -> None:
        role, settings = cast(FdsklParty, worker.role), self.settings
        if role.settings.is_active:
            self.observed.trouble |= role.trouble is not None
            counted = {one.name: int(one.value) for one in role.measure() if one.value}
            self.observed.abandoned |= "abandoned_rounds" in counted
            self.observed.announced |= "rounds_announced" in counted
        most, actives = settings.aggregation.rounds_in_flight, len(settings.federation.actives)
        several = 2 * actives if actives > 1 else 1
        for partition, task in role._tasks.items():
            pending = len(task.sums.pending)
            require(pending <= 4 * most * several, f"{role.settings.own_party}: {pending} rounds under way")
            require(
                len(task.columns) <= settings.alignment.limit,
                f"{role.settings.own_party}: {len(task.columns)} entities",
            )
            if not role.settings.is_active:
                continue
            active = role.active_partition(partition)
            may = most if actives == 1 else 2 * most
            require(
                len(active.rounds) <= may,
                f"{len(active.rounds)} rounds were announced and are not over, {may} may be",
            )
            limit = max(settings.learning.window, settings.learning.block_instances)
            require(
                len(active.labelled) <= limit,
                f"{len(active.labelled)} labelled entities are kept, {limit} may be",
            )
            require(
                active.model.kept <= settings.learning.features_limit,
                f"{active.model.kept} features are kept",
            )
            most_bytes = settings.learning.cache_bytes
            require(
                4 * len(active.cache) * active.model.limit <= most_bytes,
                f"{len(active.cache)} entities in the cache",
            )

    def standing(self, bus: Bus, last: bool) -> str:
        late = {reading.client for reading in self.last}
        expected = {entity for entity in self.to_be_predicted(bus) if last or entity not in late}
        predicted = {decode_prediction(record).entity for record in bus.read(f"{self.name}.predictions")}
        missing = expected - predicted
        return f"not predicted: {sorted(missing)[:3]}" if missing else ""

    def is_hidden(self, topic: str, partition: int) -> bool:
        """Whether nobody can read this partition any more."""
        return self.permanent_fault is not None and (topic, partition) in self.permanent_fault.places

    def to_be_predicted(self, bus: Bus) -> set[str]:
        """The entities that the active party has to predict. If a party is absent, or entities are forgotten,
        none is certain."""
        if self.absent is not None or self.forgets:
            return set()
        topic, count = samples_topic(self.active), self.partitions
        seen = {entity for party, entity in self.columns if party == self.active}
        return {
            entity for entity in seen if not self.is_hidden(topic, bus.partition_of(entity.encode(), count))
        }


def scenario_of_several(seed: int) -> FdsklScenario:
    """The scenario of this seed with two or more active parties, where every party gets everything once and
    is waited for."""
    chosen, draws = scenario(seed), rng_for(seed, "simulation", "several active parties")
    names = [str(name) for name in draws.permutation(list(chosen.parties))][
        : int(draws.integers(2, len(chosen.parties) + 1))
    ]
    given = chosen.settings

    def changed(section: Any, **update: Any) -> Any:
        return section.model_copy(update=update)

    settings = changed(
        given,
        federation=changed(given.federation, active=names),
        bus=changed(given.bus, processing_guarantee="exactly_once"),
        learning=changed(given.learning, solver="sgd", bandwidth=2.0, window=500),
        aggregation=changed(given.aggregation, mask="one-time"),
        alignment=changed(given.alignment, reply_seconds=FOR_EVER, expiry_seconds=FOR_EVER),
        standardisation=changed(given.standardisation, columns=False),
    )
    data = _data(draws, settings, chosen.dimensions, int(draws.integers(12, 25)), chosen.faulty_seconds, True)
    chosen = replace(
        chosen,
        settings=settings,
        labels=data.labels,
        columns=data.columns,
        synchronous=True,
        observed=Observed(),
    )

    def dealt(reading: Reading) -> Reading:
        if reading.topic != LABELS:
            return reading
        return replace(
            reading, topic=labels_topic(settings.federation, names[int(reading.client[1:]) % len(names)])
        )

    readings = [dealt(one) for one in data.readings]
    topics = [
        *(samples_topic(name) for name in chosen.parties),
        *(labels_topic(settings.federation, name) for name in names),
    ]
    return replace(
        chosen,
        readings=tuple(
            tuple(sorted((one for one in readings if one.topic == topic), key=lambda one: one.at))
            for topic in topics
        ),
        last=tuple(dealt(one) for one in data.last),
    )


def scenario(seed: int) -> FdsklScenario:
    """The scenario of this seed."""
    draws = rng_for(seed, "simulation", "masked sums")
    chance, between = drawn_by(draws)

    names = [f"p{number}" for number in range(between(2, 5))]
    active = str(draws.choice(names))
    synchronous = chance(0.4)
    exactly_once = synchronous or chance(0.75)
    solver, block = "newton" if chance(0.5) else "sgd", between(1, 4)
    loss = str(draws.choice(["square", "logistic", "smooth-hinge"]))
    instances = between(1, 5)
    limit = block * between(1, 4) + between(0, block - 1)
    # A bandwidth that has to be found needs more labels than most seeds have.
    found = chance(0.1)
    mask = "one-time" if chance(0.8) else str(draws.choice(["none", "paper"]))
    faulty_seconds = float(between(5, 30))
    patience = float(10 ** draws.uniform(-2.0, 0.3))
    settings = FdsklSettings(
        federation={"name": "sim", "seed": seed, "parties": names, "active": active},  # type: ignore[arg-type]
        role={"kind": WORKER},  # type: ignore[arg-type]
        party={"name": active},  # type: ignore[arg-type]
        labels={"topic": LABELS, "label": "y"},  # type: ignore[arg-type]
        samples={"topic": "samples", "features": "x", "dimension": 1},  # type: ignore[arg-type]
        bus={  # type: ignore[arg-type]
            "processing_guarantee": "exactly_once" if exactly_once else "at_least_once",
            "commit_interval_ms": between(0, 100),
            "max_poll_records": between(1, 30),
        },
        learning={  # type: ignore[arg-type]
            "loss": loss,
            "kernel": str(draws.choice(["gaussian", "gaussian", "laplacian", "matern"])),
            "bandwidth": None if found else 2.0,
            "solver": solver,
            "features_limit": limit,
            "block_features": block,
            "block_instances": instances,
            "first_instances": 1 + seed % 3,
            "window": between(instances, 20) if chance(0.3) and not found else 500,
            "visits": between(1, 3),
            "sweeps": between(1, 3) if chance(0.4) else None,
            "cache_bytes": between(0, 40) * limit if chance(0.4) else 1_000_000,
            "regularisation": 0.01,
            "step": 0.5,
            "columns_share": 0.5 if chance(0.2) else 1.0,
            # A worker that starts has a backlog of records that came before.
            "catch_up_samples": (0, 1, 3)[seed // 3 % 3],
            "catch_up_patience_seconds": 2 * patience,
        },
        aggregation={  # type: ignore[arg-type]
            "topology": str(draws.choice(["tree", "star", "ring"])),
            "mask": mask,
            "study": True,
            "frequencies": "private" if chance(0.7) else "shared",
            "circle_bits": 64 if chance(0.3) else 32,
            "round_seconds": patience + float(draws.uniform(0.5, 4.0)),
            "rounds_in_flight": between(1, 4),
        },
        alignment={  # type: ignore[arg-type]
            "reply_seconds": patience,
            "expiry_seconds": float(draws.uniform(1.0, 25.0))
            if not synchronous and chance(0.2)
            else FOR_EVER,
            "revise": chance(0.7),
            "linger_ms": float(between(0, 50)),
            "limit": 1000,
        },
        standardisation={
            # A party that waits for columns for ever cannot wait for more entities than there are.
            "columns": not synchronous and chance(0.8),
            "transform": "auto" if chance(0.5) else "none",
            # Few entities do not show whether there are heavy tails.
            "first_entities": (2, 3, 4, 10)[between(0, 3)],
        },  # type: ignore[arg-type]
    )
    if synchronous:
        # A party that asks again is answered in the end, because every party gets everything.
        alignment = settings.alignment.model_copy(update={"reply_seconds": FOR_EVER})
        settings = settings.model_copy(update={"alignment": alignment})
    dimensions = {name: between(1, 3) for name in names}
    entities = between(70, 80) if found else between(6, 24)
    data = _data(draws, settings, dimensions, entities, faulty_seconds, synchronous)
    topics = [*(samples_topic(name) for name in names), LABELS]
    return FdsklScenario(
        seed=seed,
        settings=settings,
        workers={name: between(1, 2) for name in names},
        partitions=1 if found else between(1, 3),
        dimensions=dimensions,
        readings=tuple(
            tuple(sorted((one for one in data.readings if one.topic == topic), key=lambda one: one.at))
            for topic in topics
        ),
        last=tuple(data.last),
        columns=data.columns,
        labels=data.labels,
        rates=drawn_rates(draws, seed, exactly_once),
        faulty_seconds=faulty_seconds,
        synchronous=synchronous,
    )


@dataclass
class _Data:
    """The records to write."""

    readings: list[Reading] = field(default_factory=list)
    last: list[Reading] = field(default_factory=list)
    columns: dict[tuple[str, str], list[list[float]]] = field(default_factory=dict)
    labels: dict[str, float] = field(default_factory=dict)


def _data(
    draws: np.random.Generator,
    settings: FdsklSettings,
    dimensions: Mapping[str, int],
    entities: int,
    seconds: float,
    synchronous: bool,
) -> _Data:
    """Columns that come together or late, or never, or anew; labels, mostly later."""
    data = _Data()
    for number in range(entities + LAST_ENTITIES):
        entity = f"e{number}"
        begins = float(draws.uniform(0.0, seconds) * draws.random()) if number < entities else 0.0
        own: list[Reading] = []
        for name, dimension in dimensions.items():
            if not synchronous and draws.random() < 0.1:
                continue
            at = begins + (float(draws.exponential(2.0)) if draws.random() < 0.2 else 0.0)
            for _ in range(1 + int(not synchronous and draws.random() < 0.15)):
                # With heavy tails.
                content: dict[str, Any] = {
                    "id": entity,
                    "x": np.sinh(2 * draws.normal(size=dimension)).tolist(),
                }
                data.columns.setdefault((name, entity), []).append(content["x"])
                own.append(Reading(samples_topic(name), entity, content, at, True))
                at += float(draws.exponential(3.0))
        if draws.random() < 0.7 and (settings.federation.active_party, entity) in data.columns:
            label = data.labels[entity] = float(draws.integers(2))
            later = max(0.0, begins + float(draws.exponential(3.0)) - 0.5)
            own.append(Reading(LABELS, entity, {"id": entity, "y": label}, later, True))
        (data.readings if number < entities else data.last).extend(own)
    return data
