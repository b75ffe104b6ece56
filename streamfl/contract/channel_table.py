"""What a system says of its channels, one row each. Inputs, outputs, receivers, topics and partitions are
derived from the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from streamfl.contract.channels import Channels, Decode, Input, Receiver, Sender, TopicSpec
from streamfl.contract.dealt import Dealt
from streamfl.contract.role import Headers

__all__ = ["USER", "Channel", "ChannelTable"]

USER = "user"
"""Stands for users' own programs among the writers and readers of a channel."""

# Kafka never compacts the active segment. With the default size, a worker would read up to 1 GiB of it at
# every start.
SMALL_SEGMENTS = {"segment.bytes": "67108864"}


@dataclass(frozen=True, kw_only=True)
class Channel:
    """One kind of message: who writes it, who reads it, on which topics, and how a reader takes it.

    name: what the role calls the channel.
    links: the topic by writer and reader: a party's name, the kind of a role without parties, or ``USER``.
    decode: from a record to a message, at the reader. It raises BadRecord, IgnoredRecord or NotYetReadable.
    to_each: the writer has an output for each reader, called NAME/READER.
    from_each: the reader has an input for each writer.
    claimed_sender: the party in whose name a message speaks. None: the writer, if it is a party.
    makes_room: whether waiting messages in the role wait for these. Then they are read even while a partition
    is full.
    keyed_by: gives a name in a message, which has to be in the bus's own partition for this name as key.
    client: gives the client in whose name the role speaks because of a message.
    key_of: the key of a client's records, by the client's name; ValueError for a name that no key has.
    strict: decoders that each refuse what the role accepts silently, such as unreadable values. `streamfl
    check` reports each of them that refuses all records.
    signed: everybody may read a message and act on it, such as a model: where members have keys, the house
    signs each record for all, and checks the signature at members. Without it a message has one reader.
    signed_within: as ``signed``, but the system signs its messages itself, and its decoder checks them.
    placed: its writers name the partition of every message, which is the one of the message that they
    answer, or one below ``partitions``. So partitions that somebody adds to the topic stay empty, and nobody
    reads them.
    time_of: finds the time that a message's record gets in its headers, in seconds. None: the time of
    writing.
    partitions: how many, and ``reason`` why. None: any number.
    like: the channel whose topic has as many partitions.
    compacted: whether only the last record of a key is kept.
    whole: every reader reads all partitions, as a table.
    options: settings that the topic must have.
    caution: what readers learn beyond what the topic's name says, for the administrator who grants the right
    to read it.
    state: a changelog.
    published: a changelog that peers read too.
    lasting: a changelog that outlives the federation.
    dealt: to which client each part of the state belongs. None: it cannot move to another partition.
    """

    name: str
    links: Mapping[tuple[str, str], str]
    decode: Decode | None = None
    to_each: bool = False
    from_each: bool = False
    claimed_sender: Callable[[Any], str | None] | None = None
    makes_room: bool = False
    keyed_by: Callable[[Any], str] | None = None
    client: Callable[[Any], str] | None = None
    key_of: Callable[[str], bytes] | None = None
    strict: Sequence[Decode] = ()
    signed: bool = False
    signed_within: bool = False
    placed: bool = False
    time_of: Callable[[Headers], float | None] | None = None
    partitions: int | None = None
    reason: str = ""
    like: str = ""
    compacted: bool = False
    whole: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    caution: str = ""
    state: bool = False
    published: bool = False
    lasting: bool = False
    dealt: Dealt | None = None

    def __post_init__(self) -> None:
        if self.decode is None and not self.state and any(reader != USER for _, reader in self.links):
            raise ValueError(f"channel {self.name!r}: decode is missing, and a member reads the channel")

    def inputs_of(self, own: str) -> dict[str, tuple[str, str]]:
        """Writer and topic of each of the member's inputs, by the input's name."""
        ends = {
            writer: topic
            for (writer, reader), topic in self.links.items()
            if reader == own and not self.state
        }
        return {
            f"{self.name}/{writer}" if self.from_each else self.name: (writer, topic)
            for writer, topic in ends.items()
        }

    def outputs_of(self, own: str) -> dict[str, tuple[str, str]]:
        """Reader and topic of each of the member's outputs, by the output's name."""
        ends = {reader: topic for (writer, reader), topic in self.links.items() if writer == own}
        return {
            f"{self.name}/{reader}" if self.to_each else self.name: (reader, topic)
            for reader, topic in ends.items()
        }

    def topics_of(self, own: str) -> list[str]:
        """The topics that the member reads or writes, each once."""
        return list(dict.fromkeys(topic for ends, topic in self.links.items() if own in ends))


@dataclass(frozen=True)
class ChannelTable:
    """The channels of a federation as one of its members needs them.

    own: this member's name in the rows' links.
    rows: a name stands once.
    kinds: the kind of role of each party.

    ValueError for a name that stands twice, or a row that is to have as many partitions as a channel that
    does not exist."""

    own: str
    rows: Sequence[Channel]
    kinds: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [row.name for row in self.rows]
        if len(set(names)) < len(names):
            raise ValueError(f"channels {names}: a name stands twice")
        for row in self.rows:
            if row.like and row.like not in names:
                raise ValueError(f"channel {row.name!r}: like = {row.like!r} is none of {', '.join(names)}")

    def with_changelog(self, topic: str, client_of: Callable[[bytes], str | None]) -> ChannelTable:
        """The same table with the changelog ``state``: partition p holds what is remembered of partition p of
        the member's first input. So readers learn from it what they learn from that input.

        client_of: as in :class:`Dealt`; used if that input says the keys of its clients. ValueError if the
        member has no input.
        """
        first = next((row for row in self.rows if row.inputs_of(self.own) and not row.whole), None)
        if first is None:
            raise ValueError(f"channels of {self.own!r}: no input says how many partitions its state has")
        state = Channel(
            name="state",
            links={(self.own, self.own): topic},
            partitions=first.partitions,
            reason=first.reason,
            like=first.name if first.partitions is None else "",
            caution=first.caution,
            state=True,
            dealt=None if first.key_of is None else Dealt(client_of, first.key_of),
        )
        return replace(self, rows=[*self.rows, state])

    @property
    def channels(self) -> Channels:
        """The topics behind the channel names that the member's role uses."""
        inputs: dict[str, Input] = {}
        tables: dict[str, Input] = {}
        outputs: dict[str, str] = {}
        receivers: dict[str, Receiver] = {}
        changelogs: dict[str, str] = {}
        for row in self.rows:
            (tables if row.whole else inputs).update(
                {
                    name: self._input(row, writer, topic)
                    for name, (writer, topic) in row.inputs_of(self.own).items()
                }
            )
            written = row.outputs_of(self.own)
            (changelogs if row.state or row.published else outputs).update(
                {name: topic for name, (_, topic) in written.items()}
            )
            if not (row.state or row.published or row.signed_within):
                receivers |= {
                    name: self._receiver(end)
                    for name, (end, _) in written.items()
                    if end not in (USER, self.own)
                }
        written_here = {row.name: row for row in self.rows if row.outputs_of(self.own)}
        return Channels(
            inputs=inputs,
            outputs=outputs,
            # The state is restored before other changelogs, which are checked against it.
            changelogs=dict(sorted(changelogs.items(), key=lambda one: one[0] != "state")),
            tables=tables,
            receivers=receivers,
            party=self.own if self.own in self.kinds else None,
            published=tuple(name for name, row in written_here.items() if row.published),
            times={name: row.time_of for name, row in written_here.items() if row.time_of is not None},
            lasting=tuple(name for name, row in written_here.items() if row.lasting),
            signed=tuple(name for name, row in written_here.items() if row.signed),
            dealt=next((row.dealt for row in self.rows if row.dealt is not None), None),
            partitions=next(
                (
                    row.partitions
                    for row in self.rows
                    if row.partitions is not None and not row.whole and row.inputs_of(self.own)
                ),
                None,
            ),
        )

    def topics(self, dead_letters: str) -> list[TopicSpec]:
        """The topics that the member needs, with that of records that it refuses."""
        found = [_topic_spec(row, topic) for row in self.rows for topic in row.topics_of(self.own)]
        return [*found, TopicSpec(dead_letters, None, compacted=False)]

    @property
    def partitioned_like(self) -> dict[str, str]:
        """By topic, the name of another topic that has as many partitions."""
        first = {row.name: topics[0] for row in self.rows if (topics := row.topics_of(self.own))}
        return {topic: first[row.like] for row in self.rows if row.like for topic in row.topics_of(self.own)}

    @property
    def placed(self) -> set[str]:
        """The member's topics whose writers name the partition of every message."""
        return {topic for row in self.rows if row.placed for topic in row.topics_of(self.own)}

    @property
    def between_members(self) -> set[str]:
        """The topics that one member writes and another reads, in the whole federation."""
        return {
            topic
            for row in self.rows
            if not row.state
            for ends, topic in row.links.items()
            if USER not in ends
        }

    def _input(self, row: Channel, writer: str, topic: str) -> Input:
        assert row.decode is not None
        return Input(
            topic,
            row.decode,
            makes_room=row.makes_room,
            keyed_by=row.keyed_by,
            sender=None if writer in (USER, self.own) or row.signed_within else self._sender(row, writer),
            client=row.client,
            strict=row.strict,
            signed=row.signed_within,
            signed_for_all=row.signed,
            placed=row.placed,
        )

    def _sender(self, row: Channel, writer: str) -> Sender:
        party = writer if writer in self.kinds else None
        return Sender(self._kind(writer), row.claimed_sender or (lambda _message: party))

    def _receiver(self, reader: str) -> Receiver:
        return Receiver(self._kind(reader), reader if reader in self.kinds else None)

    def _kind(self, name: str) -> str:
        return self.kinds.get(name, name)


def _topic_spec(row: Channel, topic: str) -> TopicSpec:
    changelog = row.state or row.published
    return TopicSpec(
        topic,
        row.partitions,
        compacted=row.compacted or changelog,
        options=row.options,
        preferred=SMALL_SEGMENTS if changelog else {},
        users=any(writer == USER for writer, _ in row.links),
        caution=row.caution,
        reason=row.reason,
    )
