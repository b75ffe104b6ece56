"""Long messages in parts: the role laws, and any order, crash and repetition."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from blocks import LIMITS, PART, BlockReader, checksum, decode_block
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from streamfl.contract.role import Received, Record, Send, StateChange
from streamfl.roles.fragment_encoding import decoded_in_fragments, split
from streamfl.testing.extremes import Extreme
from streamfl.testing.role_laws import RoleLaws, Subject, Traffic

SENDERS = {"pump": 0, "fan": 0, "valve": 1}
DECODE = decoded_in_fragments(decode_block)
offsets = itertools.count()


def received(value: bytes, key: bytes, partition: int) -> Received:
    record = Record("blocks", partition, next(offsets), key, value, (), 100.0)
    return Received("blocks", DECODE(record), record)


@st.composite
def conversations(draw: st.DrawFn) -> list[Received]:
    """Blocks of one to four parts from three senders. Each sender's parts are in order; the senders mix
    freely."""
    lengths = {sender: draw(st.lists(st.integers(1, 4 * PART), max_size=3)) for sender in SENDERS}
    queues = []
    for sender, partition in SENDERS.items():
        blocks = [bytes([number + 1]) * length for number, length in enumerate(lengths[sender])]
        values = [
            value for number, block in enumerate(blocks) for value in split(sender, 7, number, block, PART)
        ]
        queues.append([received(value, sender.encode(), partition) for value in values])
    turns = draw(st.permutations([place for place, queue in enumerate(queues) for _ in queue]))
    return [queues[place].pop(0) for place in turns]


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    """The parts of a conversation, divided into any polls."""
    parts = draw(conversations())
    batches = []
    while parts:
        size = draw(st.integers(0, 6))
        batches.append((100.0 + len(batches), parts[:size]))
        parts = parts[size:] if size or len(batches) < 30 else []
    return Traffic(batches, (0, 1))


def anybody(extreme: Extreme) -> list[tuple[str, Record]]:
    """A block in parts with a name as its sender and a number, and its repetition."""
    values = split(extreme.name, 7, abs(extreme.whole), b"\1" * 20, PART)
    return [
        ("blocks", Record("blocks", 0, place, extreme.key, value, (), 100.0))
        for place, value in enumerate([*values, *values])
    ]


def wrong(reason: str, place: int, **fields: object) -> tuple[Received, str]:
    value = split("stranger", 7, 1, b"\1" * 30, PART)[place]
    one = received(value, b"stranger", 0)
    return replace(one, message=replace(one.message, **fields)), reason


BAD = [
    wrong("missing_part", 1),
    wrong("oversized", 0, size=LIMITS.message_bytes + 1),
    wrong("contradictory_part", 0, content=b"seven b"),
    wrong("malformed", 0, digest=b""),
    wrong("implausible", 0, epoch=2**52),
]

# Short blocks have no number. The second law's copies of those are for the role to recognise, and this role
# counts them.
SUBJECT = Subject(BlockReader, traffics(), anybody, {"blocks": DECODE}, bad=BAD)


@pytest.mark.parametrize("subject", [SUBJECT])
class TestBlockReader(RoleLaws):
    """A role with long messages obeys every law, with unfinished messages at any cut."""


@given(conversation=conversations(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_order_crash_and_repetition_gives_each_block_once(
    conversation: list[Received], data: st.DataObject
) -> None:
    """Protects exactly-once: parts may come again at any time, and workers may end between any two, before or
    after the commit."""
    long = [one for one in conversation if not isinstance(one.message, bytes)]
    stream: list[Received] = []
    for one in long:
        stream.append(one)
        stream += data.draw(st.lists(st.sampled_from(stream), max_size=2))
    log: dict[tuple[int, bytes], StateChange] = {}
    found: Counter[tuple[bytes | None, bytes]] = Counter()
    role = opened(log)
    place = 0
    while place < len(stream):
        size = data.draw(st.integers(1, 4))
        replies = role.receive(stream[place : place + size], 100.0)
        changes = list(role.changed_state())
        fate = data.draw(
            st.sampled_from(["committed", "committed", "crash before commit", "crash after commit"])
        )
        if fate != "crash before commit":
            place += size
            for change in changes:
                log.pop((change.partition, change.key), None)
                if change.value is not None:
                    log[change.partition, change.key] = change
            assert all(isinstance(reply, Send) for reply in replies), replies
            found.update((reply.key, reply.value) for reply in replies if isinstance(reply, Send))
        if fate != "committed":
            role = opened(log)
    sent = Counter(
        (sender.encode(), checksum(bytes([first]) * size))
        for sender, first, size in {
            (one.message.sender, one.message.content[0], one.message.size) for one in long
        }
    )
    assert found == sent
    assert not role.waiting


def opened(log: dict[tuple[int, bytes], StateChange]) -> BlockReader:
    role = BlockReader()
    for partition in (0, 1):
        role.open(partition)
    for change in log.values():
        role.restore(change)
    return role
