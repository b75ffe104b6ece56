"""Federations that restart after one changelog record was damaged. The record must be named in a refusal, or
the results must be sane.
"""

from __future__ import annotations

import json
import math
from random import Random

from streamfl.contract.role import ConfigurationError, Record
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, federation_topics, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker
from streamfl.testing.fuzz.federations import FuzzedFederation
from streamfl.testing.fuzz.member import NOW, PARTITIONS
from streamfl.testing.fuzz.mutations import PATTERNS, FuzzedRecord, Mutator

__all__ = ["MemoryFederation", "Resumed"]

# Far above any count or mean of a run of some hundred messages, and far below the effect of a damaged
# exponent.
LARGEST_FIGURE = 1e6
STEP_SECONDS = 40.0
WORDS = {
    size: [
        *(pattern for pattern in PATTERNS if len(pattern) == size),
        *(sign.to_bytes(size, "little", signed=True) for sign in (-1, 0, 1, 2 ** (8 * size - 2))),
    ]
    for size in (4, 8)
}
MORE_ROUNDS = 3


class Clock:
    """A clock that only moves when it is set."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class MemoryFederation:
    """A federation on the memory bus."""

    def __init__(self, federation: FuzzedFederation) -> None:
        self.federation = federation
        self.settings = federation.settings
        self.clock = Clock()
        self.bus = MemoryBus(clock=self.clock)
        self.channels = {name: find_kind(own.role.kind).channels(own) for name, own in self.settings.items()}
        specs = federation_topics(self.settings.values(), len(PARTITIONS))
        self.topics = [spec.name for spec in specs]
        self.bus.create(specs)
        self.workers: dict[str, Worker] = {}

    def start(self) -> None:
        """Start every member. It restores its changelogs."""
        for name, own in self.settings.items():
            fast = own.model_copy(update={"bus": own.bus.model_copy(update={"commit_interval_ms": 0})})
            self.workers[name] = build_worker(fast, self.bus, self.clock, self.clock, lambda seconds: None)

    def round(self, number: int) -> None:
        """Write the users' records, and run until no worker has anything to do."""
        for name, one in self.federation.written(number):
            topic = self.channels[name].inputs[one.channel].topic
            self.bus.write([Outgoing(topic, one.key, one.value, one.partition)])
        for _ in range(2):
            while any([worker.step(0.0) for worker in self.workers.values()]):  # noqa: C419
                pass
            self.clock.now += STEP_SECONDS

    def changelog(self, name: str) -> list[Record]:
        """A member's changelog records, as compaction leaves them."""
        latest: dict[tuple[str, int, bytes], Record] = {}
        for topic in self.channels[name].changelogs.values():
            for record in self.bus.read(topic):
                latest.pop((topic, record.partition, record.key or b""), None)
                latest[topic, record.partition, record.key or b""] = record
        return [record for record in latest.values() if record.value is not None]

    def copy(self) -> MemoryFederation:
        """Another federation with the same records in its topics."""
        other = MemoryFederation(self.federation)
        other.clock.now = self.clock.now
        for topic in self.topics:
            for mine, its in zip(
                self.bus._topic(topic).partitions, other.bus._topic(topic).partitions, strict=True
            ):
                its._records, its.end = list(mine._records), mine.end
        return other


class Resumed:
    """Restarts a federation with one damaged changelog record. The record has no checksum, as if written by a
    stranger."""

    def __init__(self, run: MemoryFederation, member: str, random: Random) -> None:
        self.run = run
        self._random = random
        self._remembered = run.changelog(member)
        messages = [FuzzedRecord(one.topic, one.key, one.value, one.partition) for one in self._remembered]
        self._mutator = Mutator(random, messages)

    def damaged(self) -> Outgoing:
        """A damaged record: cut or changed bytes, changed numbers, another record's key, or another record's
        value."""
        random, chosen = self._random, self._random.choice(self._remembered)
        key, value = chosen.key or b"", chosen.value or b""
        kind = random.randrange(4)
        if kind == 0:
            message = self._mutator.message()
            return Outgoing(
                message.channel, message.key or b"", message.value, message.partition % len(PARTITIONS)
            )
        if kind == 1:
            value = self._of_another(chosen).value or b""
        elif kind == 2:
            key = self._of_another(chosen).key or b""
        else:
            size = random.choice([4, 8])
            place = size * random.randrange(max(1, len(value) // size))
            value = value[:place] + random.choice(WORDS[size]) + value[place + size :]
        return Outgoing(chosen.topic, key, value, chosen.partition)

    def _of_another(self, chosen: Record) -> Record:
        return self._random.choice(
            [one for one in self._remembered if one.topic == chosen.topic and one != chosen]
        )

    def resume(self, damaged: Outgoing) -> bool:
        """Whether the damaged record was restored. AssertionError if the results are not sane, or if a
        refusal does not name the record.
        """
        run = self.run.copy()
        run.bus.write([damaged])
        try:
            go_on(run)
        except ConfigurationError as refusal:
            text = str(refusal)
            named = f"topic {damaged.topic}, partition {damaged.partition}, key {damaged.key!r}" in text
            # A position beyond the topic's end is reported as a topic that was deleted and created again.
            assert named or " ends at " in text, f"{text} does not say which record it is"
            return False
        # The state written since must be as good as a healthy member's.
        again = run.copy()
        try:
            go_on(again)
        except ConfigurationError as refusal:
            raise AssertionError(f"what was remembered since is refused: {refusal}") from None
        return True


def go_on(run: MemoryFederation) -> None:
    """Run some more rounds. All figures and predictions must be sane."""
    name = next(iter(run.settings.values())).federation.name
    topic = f"{name}.predictions"
    before = len(list(run.bus.read(topic)))
    run.start()
    for number in range(MORE_ROUNDS):
        run.round(number)
    for who, worker in run.workers.items():
        for figure in worker.measure():
            sane = math.isfinite(figure.value) and abs(figure.value) <= LARGEST_FIGURE
            assert sane, f"{who}: {figure.name} {figure.labels} is {figure.value}"
            assert figure.value >= 0 or figure.name.startswith("regret"), (
                f"{who}: {figure.name} {figure.labels} is {figure.value}"
            )
    for record in list(run.bus.read(topic))[before:]:
        prediction = json.loads(record.value or b"")["prediction"]
        for number in prediction if isinstance(prediction, list) else [prediction]:
            assert isinstance(number, float), f"{number} is no prediction"
            assert abs(number) <= LARGEST_FIGURE, f"{number} is predicted"
