"""Long messages in parts: refusals, expiry, and crashes at any place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from blocks import (
    LIMITS,
    PART,
    claimed_sender_of_block,
    decode_block,
)
from msgspec.structs import replace

from streamfl.contract.role import BadRecord, Received, Record, StateChange
from streamfl.encoding.wire import MAXIMUM_BYTES, encoded_size
from streamfl.roles.fragment_encoding import FRAGMENT_BYTES, Fragment, decoded_in_fragments, split
from streamfl.roles.message_fragments import Limits, LongMessages

BLOCK = bytes(range(1, 31))
DECODE = decoded_in_fragments(decode_block)


def received(values: Iterable[bytes], partition: int = 0) -> list[Received]:
    records = [
        Record("blocks", partition, offset, b"key", value, (), 100.0) for offset, value in enumerate(values)
    ]
    return [Received("blocks", DECODE(record), record) for record in records]


def parts(
    block: bytes = BLOCK, sequence: int = 1, sender: str = "pump", fragment_bytes: int = PART
) -> list[Received]:
    return received(split(sender, 7, sequence, block, fragment_bytes))


def opened(limits: Limits = LIMITS, partitions: Sequence[int] = (0, 1)) -> LongMessages:
    owner = LongMessages({"blocks": decode_block}, claimed_sender_of_block, "state", b"long/", limits)
    for partition in partitions:
        owner.open(partition)
    return owner


def messages(owner: LongMessages, batch: Sequence[Received], now: float = 100.0) -> list[bytes]:
    whole, refused = owner.receive(batch, now)
    assert not refused
    return [one.message for one in whole]


def reasons(owner: LongMessages, batch: Sequence[Received], now: float = 100.0) -> list[str]:
    return [rejection.error.reason for rejection in owner.receive(batch, now)[1]]


def restored(log: Iterable[StateChange]) -> LongMessages:
    """Another worker that restores the compacted state."""
    latest: dict[tuple[int, bytes], StateChange] = {}
    for change in log:
        latest.pop((change.partition, change.key), None)
        latest[change.partition, change.key] = change
    owner = opened()
    for change in latest.values():
        if change.value is not None:
            assert owner.restore(change)
    return owner


def measured(owner: LongMessages) -> dict[str, float]:
    return {" ".join([one.name, *(value for _, value in one.labels)]): one.value for one in owner.measure()}


def test_a_short_message_is_sent_as_it_is() -> None:
    """Protects the speed of short messages: not a byte more, and the reader passes them on unchanged."""
    short = bytes(range(1, PART + 1))
    assert split("pump", 7, 1, short, PART) == [short]
    one = received([short])
    whole, refused = opened().receive(one, 100.0)
    assert whole[0] is one[0]
    assert not refused


def test_a_long_message_arrives_whole() -> None:
    """Protects the content, whatever its length. The whole has the time, place and key of its last part."""
    for length in range(PART + 1, 3 * PART + 2):
        block = bytes([1, *range(2, length + 1)])
        whole, refused = opened().receive(parts(block), 100.0)
        assert [one.message for one in whole] == [block]
        assert whole[0].record.offset == -(-length // PART) - 1
        assert not refused


def test_every_part_fits_into_a_record_and_into_the_changelog() -> None:
    """Protects the stream: a part with the longest names fits into a record, and so does its state."""
    name = "\N{GRINNING FACE}" * 256
    limits = Limits(3_000_000, 2, 2, 60.0)
    owner = opened(limits)
    for one in received(split(name, 2**53, 2**53, b"\1" * 2_500_000)):
        assert encoded_size(name.encode(), one.record.value) <= MAXIMUM_BYTES
        # No clock could have produced this record's epoch.
        owner.receive([replace(one, message=replace_part(one.message, epoch=5, sequence=5))], 100.0)
        for change in owner.changed_state():
            assert encoded_size(change.key, change.value) <= MAXIMUM_BYTES
    assert not owner.waiting
    assert FRAGMENT_BYTES * 3 > 2_500_000


def replace_part(part: object, **fields: object) -> Fragment:
    assert isinstance(part, Fragment)
    return replace(part, **fields)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"size": 8}, "malformed"),
        ({"digest": b"short"}, "malformed"),
        ({"size": 25}, "contradictory_part"),
        ({"place": 3}, "contradictory_part"),
        ({"place": 9}, "contradictory_part"),
        ({"place": 2, "content": bytes(8)}, "missing_part"),
        ({"sequence": 2}, "missing_part"),
    ],
)
def test_a_part_that_cannot_be_is_refused_alone(change: dict[str, object], reason: str) -> None:
    """Protects an unfinished message from one wrong part: the part is refused, and the message still becomes
    complete."""
    first, second, *rest = parts()
    owner = opened()
    assert messages(owner, [first]) == []
    before = list(owner.changed_state())
    wrong = replace(second, message=replace_part(second.message, **change))
    assert reasons(owner, [wrong]) == [reason]
    assert list(owner.changed_state()) == []
    assert before
    assert messages(owner, [second, *rest]) == [BLOCK]


def test_another_size_under_the_same_digest_is_refused() -> None:
    """Protects the bound: the first announced size is the valid one."""
    first, second, *_ = parts()
    owner = opened()
    messages(owner, [first])
    assert reasons(owner, [replace(second, message=replace_part(second.message, size=29))]) == [
        "contradictory_part"
    ]


def test_a_damaged_part_is_refused_where_it_shows() -> None:
    """Protects the mathematics from damaged bytes: the last part is refused, and the message is not passed
    on."""
    first, second, *rest = parts()
    owner = opened()
    wrong = replace(second, message=replace_part(second.message, content=b"\0" * PART))
    whole, refused = owner.receive([first, wrong, *rest], 100.0)
    assert whole == []
    assert [one.error.reason for one in refused] == ["damaged_part"]
    assert refused[0].received is rest[-1]


def test_a_whole_that_is_no_message_is_refused_with_its_own_reason() -> None:
    """Protects against different rules for long messages: their decoder decides, as for any record."""
    assert reasons(opened(), parts(b"\0" * 20)) == ["malformed"]


def test_other_content_under_a_number_is_put_together_apart() -> None:
    """Protects a sender that repeated its work with other records: the version that is complete first is the
    message."""
    other = parts(bytes(range(51, 81)))
    owner = opened()
    assert messages(owner, parts()[:2]) == []
    assert messages(owner, other) == [bytes(range(51, 81))]
    assert not owner.waiting
    assert messages(owner, parts()) == []
    assert not restored(owner.changed_state()).waiting


def test_numbers_that_were_heard_hide_no_other_message() -> None:
    """Protects messages of senders whose numbers repeat from run to run: another content under numbers that
    were heard comes whole, through a restart, and so does one whose parts another's came between. The last
    part alone is nothing new."""

    def made(log: Iterable[StateChange] = ()) -> LongMessages:
        decode = {"blocks": decode_block}
        owner = LongMessages(decode, claimed_sender_of_block, "state", b"long/", LIMITS, passes_repeated=True)
        owner.open(0)
        for change in log:
            if change.value is not None:
                owner.restore(change)
        return owner

    other = bytes(range(51, 81))
    owner = made()
    assert messages(owner, parts(other)) == [other]
    assert messages(owner, parts(other)[-1:]) == []
    owner = made(owner.changed_state())
    assert messages(owner, parts()[:2]) == []
    assert messages(owner, parts(other)) == [other]
    assert messages(owner, parts()[2:]) == [BLOCK]
    assert not owner.waiting


def test_partitions_are_apart() -> None:
    """Protects scale-out: the same numbers in two partitions are two messages."""
    first = received(split("pump", 7, 1, BLOCK, PART), 0)
    second = received(split("pump", 7, 1, BLOCK, PART), 1)
    owner = opened()
    mixed = [one for pair in zip(first, second, strict=True) for one in pair]
    assert messages(owner, mixed) == [BLOCK, BLOCK]


def test_what_is_not_completed_is_forgotten_and_counted() -> None:
    """Protects memory from senders that stop in the middle. Later parts of such a message count as
    missing."""
    first, second, *_ = parts()
    owner = opened()
    messages(owner, [first], 100.0)
    assert owner.wake_at == 160.0
    owner.receive([], 159.0)
    assert owner.waiting == {"messages in parts": 1}
    owner.receive([], 160.0)
    assert owner.waiting == {}
    assert owner.wake_at is None
    assert measured(owner)["incomplete_messages expired"] == 1
    assert not restored(owner.changed_state()).waiting
    assert reasons(owner, [second]) == ["missing_part"]


def test_one_more_crowds_out_what_began_first() -> None:
    """Protects memory: the number of unfinished messages is limited, with at most two for each sender."""
    owner = opened()
    for sequence in (1, 2, 3):
        messages(owner, parts(sequence=sequence)[:1])
    assert owner.waiting == {"messages in parts": 2}
    for sender in ("fan", "valve"):
        messages(owner, parts(sender=sender)[:1])
    assert owner.waiting == {"messages in parts": 3}
    assert measured(owner)["incomplete_messages crowded_out"] == 2
    assert messages(owner, parts(sequence=3)) == [BLOCK]
    assert reasons(owner, parts(sequence=2)[1:2]) == ["missing_part"]


def test_of_no_more_senders_than_the_limit_is_remembered_what_was_heard() -> None:
    """Protects memory from strangers' names; a forgotten sender counts as new."""
    owner = opened()
    log: list[StateChange] = []
    for number in range(6):
        assert messages(owner, parts(sender=f"sender {number}")) == [BLOCK]
        log += owner.changed_state()
    heard = {change.key for change in log if b"heard/" in change.key}
    gone = {change.key for change in log if b"heard/" in change.key and change.value is None}
    assert len(heard) == 6
    assert len(gone) == 2
    again = restored(log)
    assert messages(again, parts(sender="sender 5")) == []
    assert messages(again, parts(sender="sender 0")) == [BLOCK]


def test_a_clock_that_was_ahead_holds_nothing_up() -> None:
    """Protects expiry after the clock was set right, in the owner and in a restored one."""
    owner = opened()
    log: list[StateChange] = []
    for now, batch in ((9e9, parts()[:1]), (100.0, []), (100.0, parts(sender="fan")[:1])):
        owner.receive(batch, now)
        log += owner.changed_state()
    assert owner.wake_at == 160.0
    assert restored(log).wake_at == 160.0


def test_what_is_damaged_in_the_changelog_is_said_so() -> None:
    """Protects the operator: a key or value that no owner wrote stops the start with a reason."""
    for key, value in ((b"long/part/x", b""), (b"long/heard/pump", b"\xc1"), (b"long/heard/", b"\x90")):
        with pytest.raises(BadRecord):
            opened().restore(StateChange("state", 0, key, value))
    assert not opened().restore(StateChange("state", 0, b"other", b""))


def test_an_orphan_in_the_changelog_harms_nothing() -> None:
    """Protects against a changelog that lost a message's beginning: the message is read again, or expires."""
    owner = opened()
    messages(owner, parts()[:3])
    owner = restored(list(owner.changed_state())[1:])
    assert reasons(owner, parts()[3:]) == ["missing_part"]
    assert messages(owner, parts()) == [BLOCK]


def test_parts_speak_for_their_sender_alone() -> None:
    """Protects members from another writer: the parts name a sender that its key allows, but the whole names
    another."""
    honest = b"@pump " + BLOCK
    assert messages(opened(), parts(honest)) == [honest]
    owner = opened()
    assert reasons(owner, parts(b"@victim " + BLOCK)) == ["contradictory_part"]
    assert [change for change in owner.changed_state() if b"heard" in change.key] == []


def test_a_limit_that_was_lowered_holds() -> None:
    """Protects memory: messages restored from a higher limit are dropped."""
    log: list[StateChange] = []
    owner = opened(replace_limits(messages=40))
    for number in range(1, 31):
        owner.receive(parts(sequence=number, sender=f"pump-{number}")[:1], 100.0)
    log += owner.changed_state()
    lowered = opened(replace_limits(messages=3))
    for change in log:
        lowered.restore(change)
    lowered.receive(parts(sequence=1, sender="fan")[:1], 100.0)
    assert sum(lowered.waiting.values()) == 3


def replace_limits(messages: int) -> Limits:
    return Limits(message_bytes=100, messages=messages, senders=4, seconds=60.0, fragment_bytes=PART)


def test_limits_of_nothing_are_refused() -> None:
    """Protects a role from a limit of 0, with which its first message would raise or be lost silently."""
    with pytest.raises(ValueError, match="above 0"):
        replace_limits(messages=0)
    with pytest.raises(ValueError, match="at least 1"):
        split("pump", 1, 1, BLOCK, fragment_bytes=0)
