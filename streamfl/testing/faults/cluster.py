"""A bus that fails as clusters do. The seed decides at which of a worker's calls."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import structs

from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import Record
from streamfl.runtime.bus import (
    BusUnavailable,
    CommitRefused,
    Outgoing,
    Polled,
    Step,
    Subscription,
    TopicPartition,
    TopicState,
)
from streamfl.runtime.remembered_positions import POSITION_KEY
from streamfl.state.state_settings import STATE_SETTINGS_KEY
from streamfl.testing.faults.buses import ClusterMember, MemoryCluster, MemoryMember, SqliteCluster
from streamfl.testing.faults.fault_rates import FaultDraws, Rates
from streamfl.testing.faults.history import History, content
from streamfl.testing.faults.permanent_faults import DEAF
from streamfl.testing.faults.read_back import ReadBack
from streamfl.testing.faults.schedule import Killed, Scheduler
from streamfl.testing.faults.transactions import Coordinator, Network, Producer

__all__ = ["FaultyBus", "FaultySession"]


class FaultyBus:
    """A cluster. While ``fault_draws.faulty`` it has faults as likely as ``rates`` says.

    kind: memory or sqlite.
    repeatable: topics whose records a producer may write a second time.
    mended: changelogs that are never damaged.
    repeated: where records were written a second time: topic, partition, offset.
    sent: (role's time, record) of each record of a repeatable topic that was committed.
    """

    def __init__(
        self,
        kind: str,
        scheduler: Scheduler,
        history: History,
        rates: Rates,
        seed: int,
        repeatable: Collection[str],
        mended: Collection[str],
    ) -> None:
        self.scheduler = scheduler
        self.history = history
        self.rates = rates
        self.fault_draws = FaultDraws(rates, seed)
        self.cluster = (
            MemoryCluster(
                scheduler, self.fault_draws, lambda text: history.note(scheduler.now, "cluster", text)
            )
            if kind == "memory"
            else SqliteCluster(scheduler, self.fault_draws)
        )
        self.network = Network(
            Coordinator(), self._holds_back, self._arrives_late, self.fault_draws.late_draws
        )
        self.repeated: set[tuple[str, int, int]] = set()
        self.sent: list[tuple[float, Outgoing]] = []
        self.role_times: dict[str, float] = {}
        # Where each changelog seems to end, and until when. A marker is still on its way, but the group's
        # offsets are committed.
        self.late: dict[TopicPartition, tuple[int, float]] = {}
        # Processes that are cut off for good, and in which way.
        self.cut_off: dict[str, str] = {}
        # By process: the record that was damaged at its last read of a changelog.
        self.damaged: dict[str, str] = {}
        # By process: the role that reads back its changelogs' records as they are written.
        self.read_back: dict[str, ReadBack] = {}
        self._repeatable = repeatable
        self._mended = mended
        self._paused_until = 0.0
        self._sessions: dict[str, list[ClusterMember]] = {}

    def partition_of(self, key: bytes, partitions: int) -> int:
        return self.cluster.partition_of(key, partitions)

    @property
    def who(self) -> str:
        return self.scheduler.current.name if self.scheduler.current is not None else "cluster"

    def describe(self, topics: Iterable[str]) -> dict[str, TopicState]:
        return self.cluster.describe(topics)

    def members(self, group: str) -> int:
        return self.cluster.members(group)

    def committed(self, group: str) -> Mapping[TopicPartition, int]:
        return self.cluster.committed(group)

    def create(self, topics: Sequence[TopicSpec]) -> None:
        self.cluster.create(topics)

    def session(self, subscription: Subscription) -> FaultySession:
        self.call("join")
        member = self.cluster.session(subscription)
        self._sessions.setdefault(self.who, []).append(member)
        self.history.note(self.scheduler.now, self.who, "joins")
        return FaultySession(self, member, subscription)

    def write(self, records: Sequence[Outgoing]) -> None:
        self.cluster.write(records)

    def read(self, topic: str, limit: int | None = None) -> Iterator[Record]:
        return self.cluster.read(topic, limit)

    def undecided(self, topic: str) -> Mapping[int, tuple[int, int]]:
        return self.cluster.undecided(topic)

    def peek(self, topic: str, partitions: Sequence[int], count: int) -> list[Record]:
        return self.cluster.peek(topic, partitions, count)

    def read_from(self, topic: str, partition: int, offset: int) -> Iterator[Record]:
        return self.cluster.read_from(topic, partition, offset)

    def offsets(self, topic: str, at: float) -> Mapping[int, int]:
        return self.cluster.offsets(topic, at)

    def codecs(self) -> Sequence[str]:
        return self.cluster.codecs()

    def close(self) -> None:
        self.cluster.close()

    def moment(self) -> None:
        """Each call takes a little time. Other processes run meanwhile."""
        self.scheduler.sleep(
            float(self.fault_draws.draws.exponential(1e-3)) if self.fault_draws.faulty else 1e-4
        )

    def call(self, name: str, where: str = "") -> None:
        """A worker calls the cluster. It may crash, be stopped, or get no answer.

        name: of the call.
        where: the name of a crash in this call; empty: it does not crash here.
        """
        self.moment()
        how = self.cut_off.get(self.who)
        if how is not None and not (how == DEAF and name == "commit"):
            # To join, a process has to answer the cluster's messages. A process that receives none never
            # becomes a member.
            self.fall_silent(self.who, for_ever=False)
            raise BusUnavailable("nobody answers")
        if self.fault_draws.happens(self.rates.pause):
            seconds = float(self.fault_draws.draws.uniform(0.2, 8.0))
            self._paused_until = self.scheduler.now + seconds
            self.history.fault(self.scheduler.now, "cluster", "broker pause", f"{seconds:.3f} s")
        self.delay()
        if where and self.fault_draws.happens(self.rates.crash):
            self.crash(where)
        if self.scheduler.now < self._paused_until:
            self.history.note(self.scheduler.now, self.who, f"{name}: no broker answers")
            raise BusUnavailable("the broker does not answer")
        if self.fault_draws.happens(self.rates.fail):
            self.history.fault(self.scheduler.now, self.who, "call failed", name)
            raise BusUnavailable(f"{name} was not answered")

    def delay(self) -> None:
        if self.fault_draws.happens(self.rates.slow):
            seconds = float(self.fault_draws.draws.uniform(0.01, self.rates.session_timeout))
            self.history.fault(self.scheduler.now, self.who, "slow", f"{seconds:.3f} s")
            self.scheduler.sleep(seconds)
        if self.fault_draws.happens(self.rates.stop):
            seconds = float(self.fault_draws.draws.uniform(1.0, 3.0) * self.rates.session_timeout)
            self.history.fault(self.scheduler.now, self.who, "stopped", f"{seconds:.3f} s")
            self.fall_silent(self.who, for_ever=False)
            self.scheduler.sleep(seconds)
            self.history.note(self.scheduler.now, self.who, "wakes up")

    def crash(self, where: str) -> None:
        self.history.fault(self.scheduler.now, self.who, f"crash {where}")
        raise Killed

    def fall_silent(self, who: str, for_ever: bool) -> None:
        """The process no longer responds. The cluster removes it after the session timeout."""
        for member in self._sessions.get(who, []):
            member.fall_silent(for_ever)

    def repeat(self, records: Iterable[Outgoing]) -> None:
        """Writes some updates again, in their order, like a client that does not know whether they
        arrived."""
        for record in records:
            place = record.partition
            if place is None:
                place = self.partition_of(
                    record.key or b"", self.describe([record.topic])[record.topic].partitions
                )
            self.repeated.add((record.topic, place, self.cluster.end(record.topic, place)))
            self.write([record])

    def damaged_by_chance(self, topic: str, records: Iterator[Record]) -> Iterator[Record]:
        """The records of a changelog. One bit of a record that is the latest of its key may be flipped; the
        reader has to refuse that record.
        """
        self.damaged.pop(self.who, None)
        if topic in self._mended or not self.fault_draws.damages():
            return records
        found = list(records)
        latest = {record.key: place for place, record in enumerate(found)}
        places = [place for place in latest.values() if found[place].value]
        if places:
            draws = self.fault_draws.damage_draws
            place = places[int(draws.integers(len(places)))]
            value = bytearray(found[place].value or b"")
            value[int(draws.integers(len(value)))] ^= 1 << int(draws.integers(8))
            found[place] = structs.replace(found[place], value=bytes(value))
            self.damaged[self.who] = f"partition {found[place].partition}, key {found[place].key!r}"
            self.history.fault(self.scheduler.now, self.who, "record damaged", self.damaged[self.who])
        return iter(found)

    def _holds_back(self) -> bool:
        held = self.fault_draws.holds_back()
        if held:
            self.history.fault(self.scheduler.now, self.who, "late EndTxn")
        return held

    def _arrives_late(self, what: str) -> None:
        self.history.note(self.scheduler.now, self.who, what)
        if self.fault_draws.is_killed_inside():
            self.crash("inside a transaction")

    def is_repeatable(self, record: Outgoing) -> bool:
        return record.topic in self._repeatable

    def forget_offsets(self) -> None:
        """Expires the groups' offsets, as Kafka does. The changelogs stay."""
        assert isinstance(self.cluster, MemoryCluster)
        self.cluster.forget_offsets()
        self.late = {}


class FaultySession:
    """A membership on a :class:`FaultyBus`."""

    def __init__(self, bus: FaultyBus, member: ClusterMember, subscription: Subscription) -> None:
        self._bus = bus
        self._member = member
        self._subscription = subscription
        self._producer: Producer | None = None
        if isinstance(member, MemoryMember) and subscription.guarantee == "exactly_once":
            self._producer = Producer(bus.network, subscription.transactional_id, member.show)

    def poll(self, timeout: float, max_records: int) -> Polled:
        bus = self._bus
        bus.call("poll", "before poll")
        polled = self._member.poll(timeout, max_records)
        if polled:
            moved = (
                f", revoked {polled.revoked}, assigned {polled.assigned}"
                if polled.revoked or polled.assigned
                else ""
            )
            bus.history.note(
                bus.scheduler.now,
                bus.who,
                f"polls {len(polled.records)} records, {len(polled.tables)} of tables{moved}",
            )
            if bus.fault_draws.happens(bus.rates.crash):
                bus.crash("after poll")
        bus.delay()
        return polled

    def restore(self, topic: str, partition: int) -> Iterator[Record]:
        self._bus.call("restore", "while restoring")
        end, until = self._bus.late.get((topic, partition), (0, 0.0))
        records = self._bus.damaged_by_chance(topic, self._member.restore(topic, partition))
        if self._bus.scheduler.now < until:
            return (record for record in records if record.offset < end)
        return records

    def attend(self) -> None:
        self._member.attend()

    def committed(self, topic: str, partition: int) -> int | None:
        self._bus.call("committed")
        return self._member.committed(topic, partition)

    def seek(self, topic: str, partition: int, offset: int, epoch: int = -1) -> None:
        self._member.seek(topic, partition, offset, epoch)

    def commit(self, step: Step) -> None:
        bus, now = self._bus, self._bus.scheduler
        role_time = bus.role_times[bus.who]
        places = ", ".join(
            f"{topic}[{partition}] to {end}" for (topic, partition), end in sorted(step.positions.items())
        )
        what = (
            f"{len(step.outputs)} outputs, {len(step.changelog)} remembered, "
            f"{content([*step.outputs, *step.changelog])}"
        )
        bus.call("commit", "before commit")
        if bus.fault_draws.happens(bus.rates.refuse):
            bus.history.fault(now.now, bus.who, "commit refused")
            self._member.refuse()
        if bus.fault_draws.happens(bus.rates.fail):
            bus.history.fault(now.now, bus.who, "commit failed")
            raise BusUnavailable("the commit was not done")
        if (
            self._subscription.guarantee == "at_least_once"
            and self._member.settled
            and bus.fault_draws.happens(bus.rates.half)
        ):
            bus.history.fault(now.now, bus.who, "half a commit", what)
            self._append(step.outputs, role_time)
            if bus.fault_draws.draws.random() < 0.5:
                self._append(step.changelog, role_time)
            raise BusUnavailable("the commit was done in part")
        places_remembered = {(record.topic, record.partition or 0) for record in step.changelog}
        ends = {place: bus.cluster.end(*place) for place in places_remembered}
        try:
            self._write(step)
        except CommitRefused:
            bus.history.note(now.now, bus.who, f"commit refused: {places}: {what}")
            raise
        bus.history.note(now.now, bus.who, f"commits {places}: {what}")
        bus.read_back[bus.who].check(step.changelog, self._member.restore)
        if bus.who in bus.cut_off:
            self._sent(step.outputs, role_time)
            bus.fall_silent(bus.who, for_ever=False)
            raise BusUnavailable("nobody answers")
        self._delay_markers(step, ends)
        updates = self._sent(step.outputs, role_time)
        if updates and bus.fault_draws.happens(bus.rates.repeat):
            bus.history.fault(now.now, bus.who, "updates repeated", f"{len(updates)}")
            now.at(now.now + float(bus.fault_draws.draws.exponential(0.5)), lambda: bus.repeat(updates))
        if bus.fault_draws.happens(bus.rates.forget_offsets):
            bus.history.fault(now.now, "cluster", "offsets forgotten")
            bus.forget_offsets()
        if bus.fault_draws.happens(bus.rates.crash):
            bus.crash("after commit")
        if bus.fault_draws.happens(bus.rates.lose_answer):
            bus.history.fault(now.now, bus.who, "answer lost")
            raise BusUnavailable("the commit's answer was lost")

    def pause(self, places: Iterable[TopicPartition]) -> None:
        self._member.pause(places)

    def lag(self) -> Mapping[TopicPartition, int]:
        return self._member.lag()

    def unread(self) -> Mapping[TopicPartition, int]:
        return self._member.unread()

    def close(self) -> None:
        try:
            self._bus.call("leave")
        except BusUnavailable:
            self._bus.fall_silent(self._bus.who, for_ever=True)
            raise
        self._member.close()

    def _write(self, step: Step) -> None:
        """Writes all of a step or nothing, as one transaction."""
        if self._producer is None or not isinstance(self._member, MemoryMember):
            self._member.commit(step)
            return
        *records, positions = self._member.parts(step)
        self._producer.write(records)
        try:
            self._member.check_ownership(step)
        except CommitRefused:
            self._producer.abort()
            raise
        self._producer.write([positions])
        self._producer.commit()

    def _delay_markers(self, step: Step, ends: dict[TopicPartition, int]) -> None:
        bus = self._bus
        bus.late = {place: late for place, late in bus.late.items() if place not in ends}
        exactly_once = self._subscription.guarantee == "exactly_once"
        if exactly_once and step.positions and bus.fault_draws.happens(bus.rates.late):
            until = bus.scheduler.now + float(bus.fault_draws.draws.uniform(0.1, 3.0))
            bus.history.fault(bus.scheduler.now, "cluster", "changelog late", f"until {until:.3f}")
            for record in step.changelog:
                if (
                    record.key is not None
                    and record.key.startswith(POSITION_KEY)
                    and record.key != STATE_SETTINGS_KEY
                ):
                    place = (record.topic, record.partition or 0)
                    bus.late[place] = (ends[place], until)

    def _append(self, records: list[Outgoing], role_time: float) -> None:
        self._bus.write(records)
        self._sent(records, role_time)

    def _sent(self, records: list[Outgoing], role_time: float) -> list[Outgoing]:
        updates = [record for record in records if self._bus.is_repeatable(record)]
        self._bus.sent += [(role_time, record) for record in updates]
        return updates
