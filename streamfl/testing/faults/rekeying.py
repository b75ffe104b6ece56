"""Workers of `streamfl rekey` under faults, by seed. Checks that each rekeyed record is written once, to its
key's partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from streamfl.configuration.settings import BusSection, FederationSection, RoleSection, RoleSettings
from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import Record
from streamfl.contract.seeding import rng_for
from streamfl.records.rekey import AssembleSection, RekeySection
from streamfl.records.samples import SamplesSection
from streamfl.rekeying.kind import rekey_kind
from streamfl.runtime.bus import Bus
from streamfl.runtime.worker import Worker
from streamfl.testing.faults.cluster import FaultyBus
from streamfl.testing.faults.fault_rates import Rates, drawn_by, drawn_rates
from streamfl.testing.faults.federation import Reading, Verdict, run
from streamfl.testing.faults.observed_messages import require
from streamfl.testing.faults.permanent_faults import PermanentFault

__all__ = ["RekeyScenario", "scenario", "simulate"]

SOURCE, KEYED = "readings", "by-site"
KIND = "rekey-samples"
SITES = ("north", "south", "east")
SENSORS = ("temp", "hum", "load")
SPAN, SPANS, LAST_SPANS = 10.0, 12, 2
# With this expiry no sample goes on before it is whole.
NEVER = 600_000.0

Sample = tuple[str, str]


class RekeySettings(RoleSettings):
    """The parts of a role's settings that the command needs."""

    samples: SamplesSection


@dataclass(frozen=True)
class RekeyScenario:
    """A topic that is keyed by sensor, and the workers that rekey it by site.

    together: the records of a site and a span become one sample; otherwise each is a sample of its own.
    workers: their number.
    partitions: of the input topic, and of the output topic.
    samples: by site and name, the values that each sample has to have once it is written.
    late: those samples that belong to ``last``.
    bad: number of records that name no site.
    """

    seed: int
    settings: RekeySettings
    together: bool
    workers: int
    partitions: tuple[int, int]
    readings: tuple[tuple[Reading, ...], ...]
    last: tuple[Reading, ...]
    samples: Mapping[Sample, Mapping[str, float]]
    late: frozenset[Sample]
    bad: int
    rates: Rates
    faulty_seconds: float
    permanent_fault: PermanentFault | None = None

    def __str__(self) -> str:
        what = "put together" if self.together else "one by one"
        return (
            f"{what}, {self.settings.bus.processing_guarantee}, {self.workers} workers, partitions "
            f"{self.partitions}"
        )

    @property
    def members(self) -> Mapping[str, tuple[int, RoleSettings]]:
        return {"rekey": (self.workers, self.settings)}

    @property
    def repeatable(self) -> Collection[str]:
        return {f"{self.settings.group}.pieces"} if self.together else ()

    @property
    def topics(self) -> Sequence[TopicSpec]:
        of = {KEYED: self.partitions[1]}
        specs = rekey_kind("samples").topics(self.settings)
        return [replace(spec, partitions=of.get(spec.name, self.partitions[0])) for spec in specs]

    @property
    def tasks(self) -> int:
        return self.partitions[0]

    def prepare(self, worker: Worker) -> None:
        """Nothing to change."""

    def check_bounds(self, worker: Worker) -> None:
        """The limit on waiting samples is larger than the number of samples in a scenario."""

    def standing(self, bus: Bus, last: bool) -> str:
        wanted = self.samples.keys() if last else self.samples.keys() - self.late
        missing = wanted - {_named(record) for record in bus.read(KEYED)}
        return f"not written: {sorted(missing)[:5]}" if missing else ""


def scenario(seed: int) -> RekeyScenario:
    """The scenario of this seed."""
    draws = rng_for(seed, "simulation", "rekey scenario")
    chance, between = drawn_by(draws)
    together, once = chance(0.7), chance(0.8)
    rates = drawn_rates(draws, seed, once)
    settings = _drawn_settings(between, together, once)
    seconds = float(draws.uniform(20.0, 60.0))
    written = _drawn_records(draws, together, seconds)
    early = sorted((one for one in written.readings if one.at < seconds), key=lambda one: one.at)
    producers = between(1, 3)
    return RekeyScenario(
        seed,
        settings,
        together,
        between(1, 3),
        (between(1, 4), between(1, 4)),
        tuple(tuple(early[number::producers]) for number in range(producers)),
        tuple(one for one in written.readings if one.at >= seconds),
        written.samples,
        frozenset(written.late),
        written.bad,
        rates,
        seconds,
    )


def _drawn_settings(between: Callable[[int, int], int], together: bool, once: bool) -> RekeySettings:
    return RekeySettings(
        federation=FederationSection(name="plant"),
        role=RoleSection(kind=KIND),
        bus=BusSection(
            processing_guarantee="exactly_once" if once else "at_least_once",
            commit_interval_ms=between(0, 200),
            max_poll_records=between(2, 30),
        ),
        samples=SamplesSection(
            topic=KEYED,
            format="msgpack",
            client="site",
            sample_id="id" if not together else "span",
            features=["temp", "hum"],
            label="load",
            rekey=RekeySection(topic=SOURCE),
            assemble=AssembleSection(
                seconds=SPAN, time="ts", time_unit="s", name="sensor", value="value", expiry_seconds=NEVER
            )
            if together
            else None,
        ),
    )


@dataclass
class _Written:
    """All records of a scenario, in the order in which they were drawn; samples, late and bad as in
    :class:`RekeyScenario`."""

    readings: list[Reading] = field(default_factory=list)
    samples: dict[Sample, dict[str, float]] = field(default_factory=dict)
    late: set[Sample] = field(default_factory=set)
    bad: int = 0


def _drawn_records(draws: np.random.Generator, together: bool, seconds: float) -> _Written:
    """seconds: those of the last spans are written from then on."""
    chance, between = drawn_by(draws)
    found = _Written()
    for span in range(SPANS + LAST_SPANS):
        for site in SITES:
            # A gateway may send all records of a sample again, also after the sample went on. An assembled
            # sample must count once.
            again = together and chance(0.3)
            for sensor in draws.permutation(SENSORS):
                at = seconds if span >= SPANS else float(draws.uniform(0.0, seconds))
                value = float(draws.integers(1000))
                name = str(int(SPAN * span)) if together else f"{span}-{sensor}"
                ts = int(SPAN * span) + between(0, int(SPAN) - 1)
                content = {
                    "id": f"{site}/{name}/{sensor}" if together else name,
                    "site": site,
                    "sensor": str(sensor),
                    "ts": ts,
                }
                reading = Reading(SOURCE, str(sensor), {**content, "value": value}, at, labelled=False)
                found.readings.append(reading)
                if again:
                    found.readings.append(replace(reading, at=max(at, float(draws.uniform(0.0, seconds)))))
                found.samples.setdefault((site, name), {})[str(sensor)] = value
                if span >= SPANS:
                    found.late.add((site, name))
                if span < SPANS and chance(0.05):
                    found.bad += 1
                    bad = {"id": f"bad-{found.bad}", "value": 1.0}
                    found.readings.append(Reading(SOURCE, str(sensor), bad, at, labelled=False))
    return found


def simulate(seed: int, bus: str = "memory") -> Verdict:
    """Run the scenario of this seed on a bus, memory or sqlite, and check that each record was carried over
    once."""
    chosen = scenario(seed)
    return run(chosen, lambda faulty: check(chosen, faulty), bus, {KIND: rekey_kind("samples")})


def check(chosen: RekeyScenario, bus: FaultyBus) -> None:
    """Raise CheckFailed unless every sample was written once, complete and to its key's partition."""
    once = chosen.settings.bus.processing_guarantee == "exactly_once"
    found: Counter[Sample] = Counter()
    for record in bus.read(KEYED):
        sample, content = _named(record), msgspec.msgpack.decode(record.value or b"")
        found[sample] += 1
        wanted = chosen.samples.get(sample)
        require(wanted is not None, f"{sample}: nobody wrote such a sample")
        assert wanted is not None
        has = (
            {one: content[one] for one in SENSORS if one in content}
            if chosen.together
            else {content["sensor"]: content["value"]}
        )
        require(has == wanted, f"{sample}: has {has}, should have {wanted}")
        require(record.key == sample[0].encode(), f"{sample}: its key is {record.key!r}")
        place = bus.partition_of(sample[0].encode(), chosen.partitions[1])
        require(
            record.partition == place, f"{sample}: is in partition {record.partition}, belongs to {place}"
        )
    lost = chosen.samples.keys() - found.keys()
    require(not lost, f"never written: {sorted(lost)[:5]}")
    letters = Counter(
        msgspec.msgpack.decode(letter.value or b"")["id"] for letter in bus.read(chosen.settings.dead_letters)
    )
    require(len(letters) == chosen.bad, f"{len(letters)} records were put aside, {chosen.bad} name no site")
    if once:
        twice = [one for one, count in (*found.items(), *letters.items()) if count > 1]
        require(not twice, f"written twice: {twice[:5]}")


def _named(record: Record) -> Sample:
    content = msgspec.msgpack.decode(record.value or b"")
    return content["site"], content.get("span") or content["id"]
