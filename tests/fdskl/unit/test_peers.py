"""What a party knows of the lives of others: bounds, copies, restoring, and what is refused."""

from __future__ import annotations

import msgspec
import pytest
from fdskl.makers import life_of, lives, make_worker, secret_bytes, settings_of

from streamfl.contract.role import BadRecord, Received, Record, Send
from streamfl.encoding.wire import VERSION
from streamfl.fdskl.messages import Incarnation
from streamfl.fdskl.party.peers import MOST_LIVES, Peers
from streamfl.fdskl.sums.masks import OwnIncarnation
from streamfl.fdskl.sums.received_rounds import MOST_IDENTITIES, MOST_RUNS, ReceivedRounds
from streamfl.fdskl.sums.received_rounds import MOST_LIVES as MOST_ROUND_LIVES
from streamfl.state.changelog import ChangedParts

NAMES = ("a", "b", "c")


def peers(parts: ChangedParts | None = None, own: int = 0) -> Peers:
    return Peers(ChangedParts() if parts is None else parts, NAMES, own, lives(own))


def told(
    life: OwnIncarnation,
    telling: int = 1,
    sender: str = "b",
    number: int | None = None,
    public: bytes | None = None,
) -> Incarnation:
    return Incarnation(
        VERSION,
        1,
        sender,
        life.number if number is None else number,
        life.public if public is None else public,
        telling,
        0,
    )


def test_many_announcements_that_name_another_life_get_one_answer() -> None:
    """If each got its own, two parties that both restarted and have many of them unread would answer one
    another without end; and copies of them would double the answers each time."""
    settings = settings_of("p0", 2)
    worker, other = make_worker(settings), life_of(1, 0)
    worker.open(0)

    def announcements(batch: list[Received], now: float) -> int:
        return sum(
            isinstance(reply, Send) and reply.channel == "incarnations/p1"
            for reply in worker.receive(batch, now)
        )

    answers = []
    for telling in range(40):
        message = Incarnation(VERSION, settings.fingerprint, "p1", other.number, other.public, telling, 12345)
        record = Record("incarnations", 0, telling, None, b"")
        answers.append(announcements([Received("incarnations", message, record)], 1_000.0))
    # The announcement of its own life, and the answer to a new one.
    assert answers == [2, *[0] * 39]
    assert worker.wake_at is not None
    assert announcements([], worker.wake_at) == 1
    assert announcements([], 1_001.0) == 0


def test_lives_are_bounded() -> None:
    """Protects memory, and the record that lives are remembered in, from a party that begins anew all the
    time."""
    parts = ChangedParts()
    known = peers(parts)
    for number in range(MOST_LIVES + 40):
        known.hear(1, told(life_of(1, number)))
    ((key, value),) = parts.changed_state()
    assert key == b"peer/1"
    assert value is not None
    assert len(value) < 2000
    assert not known.knows(1, life_of(1, 0).number)
    assert known.knows(1, life_of(1, 45).number)


def test_what_was_heard_is_restored() -> None:
    """Protects a restarted party from asking everybody anew, and from copies of before."""
    parts, again = ChangedParts(), ChangedParts()
    one, other = peers(parts), peers(again)
    one.hear(1, told(life_of(1, 0)))
    one.hear(2, told(life_of(2, 3), sender="c"))
    assert one.note_revision(1, 5, 9, 1.0)
    assert one.tell() == one.incarnation.telling(1)
    for key, value in parts.changed_state():
        assert value is not None
        again.restore(key, value)
    assert other.numbers == one.numbers
    assert other.are_told
    assert other.tell() == other.incarnation.telling(2)
    assert other.was_heard(1, told(life_of(1, 0)))
    assert not other.note_revision(1, 5, 9, 1.0)
    assert other.pair_secrets(other.numbers) == one.pair_secrets(one.numbers)


def test_another_life_has_to_be_told() -> None:
    """Protects a party that is taken up again: nobody knows its new key before it says it, and masks are
    agreed on with the new key."""
    known = peers()
    other = life_of(1, 0)
    for number, sender in ((0, "b"), (1, "c")):
        known.hear(1 + number, told(life_of(1 + number, 0), sender=sender))
    earlier = known.pair_secrets(known.numbers)[1]
    assert not known.are_told
    first = known.tell()
    assert known.are_told
    assert known.tell() != first
    known.begin_anew()
    assert not known.are_told
    agreed = known.pair_secrets(known.numbers)[1]
    assert agreed == other.pair_secret(known.incarnation.public)
    assert agreed != earlier


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (told(life_of(1, 0), number=5), "another number"),
        (told(life_of(1, 0), public=bytes(31)), "another number"),
        (told(OwnIncarnation(secret_bytes(0, 0))), "itself"),
    ],
)
def test_a_key_that_is_none_is_refused(message: Incarnation, text: str) -> None:
    """Protects masks from keys with which everybody has the same secret."""
    known = peers()
    with pytest.raises(BadRecord, match=text) as refused:
        known.hear(1, message)
    assert refused.value.reason == "malformed"
    assert known.missing == ["b", "c"]


def test_a_revision_may_come_before_its_party_is_heard_of() -> None:
    """Protects a revision from being lost, for it lies in another topic than the party's first word; a copy
    of it is known."""
    known = peers()
    assert known.note_revision(1, 5, 9, 1.0)
    assert not known.note_revision(1, 5, 9, 1.0)
    assert known.missing == ["b", "c"]
    known.hear(1, told(life_of(1, 0)))
    assert known.missing == ["c"]
    assert not known.note_revision(1, 5, 9, 1.0)


def test_a_remembered_peer_with_a_wrong_key_is_refused() -> None:
    """Protects a start from a damaged changelog."""
    parts = ChangedParts()
    peers(parts)
    with pytest.raises(BadRecord, match="key"):
        parts.restore(b"peer/1", msgspec.msgpack.encode([[[5, b"short"]], [], []]))
    with pytest.raises(BadRecord, match="3 parties"):
        parts.restore(b"peer/0", msgspec.msgpack.encode([[[5, bytes(32)]], [], []]))


def test_numbers_of_rounds_are_bounded_and_none_counts_as_heard_that_was_not() -> None:
    """Protects memory from rounds of any number, without a round that is answered twice or one that is shut
    out."""
    received = ReceivedRounds()
    numbers = [3 * number + 1 for number in range(MOST_RUNS)]
    assert not any(
        received.is_crowded((1, number)) or not received.note((1, number), b"asked") for number in numbers
    )
    assert not any(received.note((1, number), b"asked") for number in numbers)
    assert len(received) == MOST_RUNS
    assert not any((1, number + 1) in received or (1, number - 1) in received for number in numbers)
    assert received.is_crowded((1, 2**40))
    assert received.is_crowded((2, 0))
    assert not received.is_crowded((1, 4))
    for number in (2, 3, 0):
        assert not received.is_crowded((1, number))
        assert received.note((1, number), b"asked")
    assert len(received) == MOST_RUNS - 1
    assert [number in (0, 1, 2, 3, 4, 7, 10) for number in range(11)] == [
        (1, number) in received for number in range(11)
    ]


def test_lives_that_rounds_are_of_are_bounded() -> None:
    """Protects memory from rounds of any life."""
    received = ReceivedRounds()
    for life in range(MOST_ROUND_LIVES):
        assert not received.is_crowded((life, 0))
        received.note((life, 0), b"asked")
    assert received.is_crowded((10**6, 0))
    assert not received.is_crowded((1, 0))


def test_two_rounds_of_a_name_are_told_apart() -> None:
    """Protects rounds to come from whoever writes their numbers first; memory is bounded."""
    received = ReceivedRounds()
    assert received.note((1, 0), b"asked")
    assert not received.is_another((1, 0), b"asked")
    assert received.is_another((1, 0), b"something else")
    assert not received.is_another((1, 1), b"something else")
    for number in range(1, MOST_IDENTITIES + 1):
        received.note((1, number), b"asked")
    assert received.is_another((1, 0), b"asked")
    assert not received.is_another((1, 1), b"asked")


def test_two_parties_with_one_life_are_not_all_others() -> None:
    """Protects the active party's process, which asked a round that it refused itself: anybody could write
    what ended it."""
    own, first, second = peers(), OwnIncarnation(bytes([1]) * 32), OwnIncarnation(bytes([2]) * 32)
    for party in (1, 2):
        own.hear(party, told(first))
    assert own.missing == []
    assert not own.complete
    # The party's own next word puts it right.
    own.hear(2, told(second))
    assert own.complete
