"""What a worker reads: how records become messages, and which of them count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from streamfl.parts import Part
from streamfl.role import Channels, ConfigurationError, Input, PassedOver, PeerError, Received, Record
from streamfl.runtime.bus import Bus, Session, TopicPartition
from streamfl.runtime.draft import Draft
from streamfl.runtime.tasks import Tasks

__all__ = ["Inputs"]


class Inputs:
    """The inputs and tables of a role.

    dead_letter_topic: where records of inputs go that are wrong.
    """

    def __init__(self, channels: Channels, bus: Bus, tasks: Tasks, dead_letter_topic: str) -> None:
        self._sources = _by_topic(channels.inputs)
        self._tables = _by_topic(channels.tables)
        self._bus = bus
        self._tasks = tasks
        self._dead_letter_topic = dead_letter_topic
        self._partition_counts: dict[str, int] = {}

    def __iter__(self) -> Iterator[str]:
        """The topics of the inputs."""
        return iter(self._sources)

    def join(self) -> None:
        """Look how many partitions there are where a record's partition has to be its name's own."""
        keyed = [topic for topic, (_, source) in self._sources.items() if source.keyed_by is not None]
        self._partition_counts = {name: state.partitions for name, state in self._bus.describe(keyed).items()}

    def places(self, partitions: Iterable[int], full: bool = False) -> set[TopicPartition]:
        """The inputs of these partitions; full: but for those that make room in a full one."""
        topics = [topic for topic, (_, source) in self._sources.items() if not (full and source.makes_room)]
        return {(topic, partition) for topic in topics for partition in partitions}

    def decode_tables(self, records: Sequence[Record], draft: Draft) -> list[Received]:
        """The messages in records of tables."""
        batch: list[Received] = []
        for record in records:
            channel, table = self._tables[record.topic]
            try:
                batch.append(Received(channel, table.decode(record), record))
            except PeerError as error:
                self.reject(record, error, draft)
        return batch

    def decode(self, session: Session, records: Sequence[Record], draft: Draft) -> list[Received]:
        """The messages in records of inputs that the state does not reflect yet. ConfigurationError if a topic is another one."""
        batch: list[Received] = []
        read: dict[TopicPartition, int] = {}
        repeated: set[TopicPartition] = set()
        positions = self._tasks.positions
        for record in records:
            place = (record.topic, record.partition)
            read[place] = record.offset + 1
            if record.offset < positions.get(place, 0):
                draft.repeated += 1
                repeated.add(place)
                continue
            draft.records += 1
            positions[place] = draft.step.positions[place] = record.offset + 1
            channel, source = self._sources[record.topic]
            try:
                message = source.decode(record)
                if source.keyed_by is not None:
                    if isinstance(message, Part):
                        raise PeerError("malformed", "messages of this input are not sent in parts")
                    self._check_place(record, source.keyed_by(message))
                batch.append(Received(channel, message, record))
            except PassedOver as passed:
                draft.passed_over[passed.reason] += 1
            except PeerError as error:
                self.reject(record, error, draft)
        if repeated:
            lag = session.lag()
            for place in sorted(repeated):
                self._tasks.check_end(*place, positions[place], read[place] + lag.get(place, positions[place]))
        return batch

    def _check_place(self, record: Record, name: str) -> None:
        expected = self._bus.partition_of(name.encode(), self._partition_counts[record.topic])
        if record.partition != expected:
            raise PeerError(
                "partition",
                f"{name!r} came in partition {record.partition}, its own is {expected}: let the records' key be this name, and "
                "the producer choose the partition by Kafka's default (murmur2; librdkafka: partitioner=murmur2_random); or let "
                "`streamfl rekey CONFIG` write the topic anew ([samples.rekey])",
            )

    def reject(self, record: Record, error: PeerError, draft: Draft) -> None:
        """A record is wrong: one of an input becomes a dead letter, one of a table is counted, for everybody reads it."""
        if record.topic in self._sources:
            draft.refuse(record, error, self._dead_letter_topic)
        else:
            draft.table_rejections.append((record, error))


def _by_topic(inputs: Mapping[str, Input]) -> dict[str, tuple[str, Input]]:
    by_topic = {source.topic: (channel, source) for channel, source in inputs.items()}
    if len(by_topic) < len(inputs):
        raise ConfigurationError(f"two inputs of a role read the same topic: {sorted(s.topic for s in inputs.values())}")
    return by_topic
