"""How long from the first label to the first prediction that has learnt, of the vertical systems, by the
speed of the stream.

``python -m benchmarks.first_learnt`` prints a table, in seconds of a virtual clock: nothing takes time but
waiting. Two parties with the default settings; an entity's columns and its label come at the same moment,
1,100 of them, and then none. Quasi-Newton computes without encryption, which leaves the model as it is. DP
Frank-Wolfe has windows of 1,000 rows, for `window.rows` has no default, and says models in place of
predictions.

``--broker`` measures it on a real one instead, in seconds of the clock, from the first label's time to the
time of what has learnt."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from typing import Any

import msgspec
import numpy as np
from pydantic import BaseModel

from benchmarks.broker import running_broker
from benchmarks.commands import Markdown, arguments, several
from benchmarks.federation import make_topics
from streamfl.configuration.settings import RoleSettings
from streamfl.dp_frank_wolfe.config import ColumnFederation, DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.tools.simulated_members import members as dp_frank_wolfe_members
from streamfl.fdskl.config import FdsklFederation, FdsklSettings
from streamfl.fdskl.tools.simulated_members import members as fdskl_members
from streamfl.quasi_newton.config import QuasiNewtonFederation, QuasiNewtonSettings
from streamfl.quasi_newton.tools.simulated_members import members as quasi_newton_members
from streamfl.runtime.bus import Bus, Outgoing, connect
from streamfl.runtime.kinds import build_worker
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.simulation.vertical.members import LABEL, LABELS, columns_content, samples_topic
from streamfl.vafl.config import VaflFederation, VaflSettings
from streamfl.vafl.tools.simulated_members import members as vafl_members

RATES = (0.1, 1.0, 1000.0)
PARTIES, COLUMNS = ("a", "b"), 2
NAMED: dict[str, Any] = {"name": "f", "parties": list(PARTIES)}
COUNTS = dict.fromkeys(PARTIES, COLUMNS)
DELAY, LONGEST = 0.001, 50_000.0
# Entities that come: more than any system waits for.
MOST = 1_100
# On a broker: until all members have their partitions.
SETTLE_SECONDS = 15.0


def _settings(
    kind: type[RoleSettings],
    members: Callable[..., Mapping[str, Mapping[str, Any]]],
    federation: BaseModel,
    *columns: Mapping[str, int],
    **shared: Any,
) -> dict[str, RoleSettings]:
    """By member. columns: by party, where the federation does not have them."""
    return {
        name: kind.model_validate({"federation": federation, **shared, **own})
        for name, own in members(federation, *columns).items()
    }


def vafl() -> dict[str, RoleSettings]:
    federation = VaflFederation(**NAMED, embedding_size=1)
    return _settings(VaflSettings, vafl_members, federation, COUNTS, learning={"loss": "logistic"})


def fdskl() -> dict[str, RoleSettings]:
    return _settings(FdsklSettings, fdskl_members, FdsklFederation(**NAMED), COUNTS)


def quasi_newton() -> dict[str, RoleSettings]:
    plain = {"encryption": {"precision": "plain", "study": True}, "alignment": {"method": "keyed-hash"}}
    federation = QuasiNewtonFederation(**NAMED)
    return _settings(QuasiNewtonSettings, quasi_newton_members, federation, COUNTS, **plain)


def dp_frank_wolfe() -> dict[str, RoleSettings]:
    federation = ColumnFederation(**NAMED, columns=COUNTS)
    shared = {
        "window": {"rows": 1000},
        "privacy": {"epsilon": float("inf"), "delta": 1e-6},
        "bounds": {"label_centre": 0.5, "label_bound": 0.5},
    }
    return _settings(DPFrankWolfeSettings, dp_frank_wolfe_members, federation, **shared)


def _has_learnt(value: Mapping[str, Any]) -> bool:
    """VAFL's predictions are 0.5 before anything is learnt, FDSKL's say version 0; the others say nothing
    before."""
    return value.get("version", 1) > 0 and value.get("prediction") != 0.5


class Entities:
    """Rows that come one by one, on a bus whose topics are made for these members."""

    def __init__(self, bus: Bus, members: Mapping[str, RoleSettings]) -> None:
        self._bus = bus
        random = np.random.default_rng(8)
        self._columns = random.normal(size=(MOST, len(PARTIES) * COLUMNS))
        self._labels = (self._columns[:, 0] + self._columns[:, COLUMNS] > 0).astype(float)
        for settings in members.values():
            make_topics(bus, settings)

    def write(self, entity: int) -> None:
        """Its columns and its label."""
        name = f"entity {entity}".encode()
        records = []
        for place, party in enumerate(PARTIES):
            own = self._columns[entity, place * COLUMNS : (place + 1) * COLUMNS].tolist()
            content = msgspec.msgpack.encode(columns_content(COLUMNS, own))
            records.append(Outgoing(samples_topic(party), name, content))
        label = msgspec.msgpack.encode({LABEL: float(self._labels[entity])})
        self._bus.write([*records, Outgoing(LABELS, name, label)])


class Stream:
    """A federation's workers, and entities that come at so many a second.

    members: settings by name.
    topic: what is said to users.
    """

    def __init__(self, members: Mapping[str, RoleSettings], topic: str) -> None:
        self.now = self.begin = 1_000.0
        self.bus, self._topic, self._read = MemoryBus(clock=lambda: self.now), topic, 0
        self.entities = Entities(self.bus, members)
        times: dict[str, Any] = {
            "clock": lambda: self.now,
            "monotonic": lambda: self.now,
            "sleep": lambda seconds: None,
        }
        self.workers = [build_worker(settings, self.bus, **times) for settings in members.values()]
        self.step()

    def step(self) -> bool:
        """Whether a member did anything."""
        # Each of them, whatever the one before it did.
        return sum(worker.step(0.0) for worker in self.workers) > 0

    def has_learnt(self) -> bool:
        """Whether something was said to users that has learnt."""
        found = list(self.bus.read(self._topic))
        new, self._read = found[self._read :], len(found)
        return any(_has_learnt(msgspec.json.decode(one.value)) for one in new if one.value)

    @property
    def wake_at(self) -> float:
        asked = [worker.role.wake_at for worker in self.workers]
        # 0.0 is a time, too: a role asks with it for a tick at once.
        return min((at for at in asked if at is not None), default=self.now + LONGEST)


SYSTEMS: dict[str, tuple[Callable[[], dict[str, RoleSettings]], str]] = {
    "VAFL": (vafl, "f.predictions"),
    "FDSKL": (fdskl, "f.predictions"),
    "quasi-Newton": (quasi_newton, "f.predictions"),
    "DP Frank-Wolfe": (dp_frank_wolfe, "f.model"),
}


def seconds_to_learn(system: str, rate: float) -> tuple[float, int]:
    """Virtual seconds from the first label to what has learnt, and how many labels had come by then."""
    make, topic = SYSTEMS[system]
    stream, written = Stream(make(), topic), 0
    while stream.now < stream.begin + LONGEST:
        while written < MOST and stream.begin + written / rate <= stream.now:
            stream.entities.write(written)
            written += 1
        if stream.step():
            if stream.has_learnt():
                return stream.now - stream.begin, written
            stream.now += DELAY
            continue
        coming = stream.begin + written / rate if written < MOST else float("inf")
        stream.now = max(stream.now + DELAY, min(coming, stream.wake_at))
    return float("inf"), written


def seconds_on_a_broker(system: str, rate: float) -> tuple[float, int]:
    """The same on a real broker, each worker in a thread of its own."""
    make, topic = SYSTEMS[system]
    with running_broker() as broker, ExitStack() as stack:
        members, stop = make(), threading.Event()
        bus, *buses = [stack.enter_context(closing(connect(broker.url))) for _ in range(len(members) + 1)]
        entities = Entities(bus, members)
        workers = [build_worker(settings, own) for settings, own in zip(members.values(), buses, strict=True)]
        threads = [threading.Thread(target=worker.run, args=(stop,), daemon=True) for worker in workers]
        for thread in threads:
            thread.start()
        # Their groups form first: that is no part of a stream that runs.
        time.sleep(SETTLE_SECONDS)
        begin, written, looked = time.time(), 0, 0.0
        try:
            while time.time() < begin + LONGEST and all(thread.is_alive() for thread in threads):
                while written < MOST and begin + written / rate <= time.time():
                    entities.write(written)
                    written += 1
                if time.time() > looked + 1:
                    looked = time.time()
                    said = [
                        one
                        for one in bus.read(topic)
                        if one.value and _has_learnt(msgspec.json.decode(one.value))
                    ]
                    if said:
                        seconds = said[0].timestamp - begin
                        return seconds, min(written, int(seconds * rate) + 1)
                time.sleep(min(0.05, 1 / rate))
            raise RuntimeError(f"{system}: nothing was learnt, or a worker ended, after {written} entities")
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def main() -> None:
    given = arguments(
        "first_learnt",
        __doc__,
        broker=(False, "on a real one, which takes as long as it says"),
        system=several("left out: all", SYSTEMS),
        rate=several(f"entities a second; left out: {RATES}", kind=float),
    )
    systems = given.system or list(SYSTEMS)
    measured = seconds_on_a_broker if given.broker else seconds_to_learn
    table = Markdown("entities a second", *systems)
    for rate in given.rate or RATES:
        found = [measured(system, rate) for system in systems]
        table.add(f"{rate:g}", *(f"{seconds:,.1f} s, {labels:,} labels" for seconds, labels in found))


if __name__ == "__main__":
    main()
