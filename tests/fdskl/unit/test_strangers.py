"""What a stranger or a faulty party may write decides nothing for good: a federation that heard it goes
on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from fdskl.laws.closed_loop import ClosedLoop
from fdskl.makers import life_of, make_worker, settings_of

from streamfl.contract.role import BadRecord, Received, Record, Rejection, Send
from streamfl.encoding.wire import MAXIMUM_BYTES, VERSION
from streamfl.fdskl.config import FEWEST_ENTITIES
from streamfl.fdskl.messages import (
    DISTANCES,
    INCARNATION,
    MOST_DISTANCES,
    MOST_ENTITIES,
    PARTIAL_SUM,
    PHASES,
    ROUND,
    FeatureRange,
    Incarnation,
    PartialSum,
    Round,
)
from streamfl.fdskl.sums.pending_sums import SUM
from streamfl.fdskl.sums.received_rounds import MOST_LIVES, MOST_RUNS

ENTITIES = [f"e{number}" for number in range(6)]


def federation(parties: int = 3, **learning: Any) -> ClosedLoop:
    calm = {"reply_seconds": 0.7, "expiry_seconds": 1e6, "limit": 40, "linger_ms": 5.0}
    return ClosedLoop(
        [
            settings_of(f"p{number}", parties, alignment=dict(calm), learning=learning)
            for number in range(parties)
        ]
    )


def learn(loop: ClosedLoop, entities: list[str]) -> None:
    for number, entity in enumerate(entities):
        loop.write_sample(entity, 0.3 * number - 1.0)
    loop.settle()
    for number, entity in enumerate(entities):
        loop.write_label(entity, float(number % 2))
    loop.settle()


def tell(loop: ClosedLoop, to: int, channel: str, content: bytes) -> None:
    loop.members[to].unread.append((channel, Record(channel, 0, 0, None, content, (), loop.now)))


def incarnation(loop: ClosedLoop, party: int, knows: int) -> bytes:
    """That of nobody, in a party's name."""
    made, fingerprint = life_of(99, party), loop.active.settings.fingerprint
    return INCARNATION.encode(
        Incarnation(VERSION, fingerprint, f"p{party}", made.number, made.public, 1, knows)
    )


def announced(
    loop: ClosedLoop, number: int, root: int | None = None, entities: list[str] | None = None
) -> Round:
    numbers = loop.active.partition(0).peers.numbers
    numbers[0] = numbers[0] if root is None else root
    fingerprint = loop.active.settings.fingerprint
    return Round(
        VERSION, fingerprint, "p0", numbers, number, PHASES, 1.0, [FeatureRange(0, 2)], entities or ["e0"]
    )


def forge_life(to: int, party: int) -> Callable[[ClosedLoop], None]:
    def forge(loop: ClosedLoop) -> None:
        own = loop.members[to].role.partition(0).peers.incarnation.number
        tell(loop, to, "incarnations", incarnation(loop, party, own))

    return forge


def far_ahead(loop: ClosedLoop) -> None:
    for to in (1, 2):
        tell(loop, to, "rounds", ROUND.encode(announced(loop, 2**53)))


def many_lives(loop: ClosedLoop) -> None:
    for number in range(MOST_LIVES + 1):
        tell(loop, 1, "rounds", ROUND.encode(announced(loop, 0, root=number)))


def many_numbers(loop: ClosedLoop) -> None:
    for number in range(MOST_RUNS + 100):
        tell(loop, 1, "rounds", ROUND.encode(announced(loop, 2**40 + 2 * number)))
        tell(loop, 1, "rounds", ROUND.encode(announced(loop, 2**41 + number)))


def numbers_to_come(loop: ClosedLoop) -> None:
    for number in range(1000):
        for to in (1, 2):
            tell(loop, to, "rounds", ROUND.encode(announced(loop, number)))


def tellings_to_come(loop: ClosedLoop) -> None:
    """The true life of a party is told of in its name, a thousand times, and then one of nobody."""
    life = loop.members[1].role.partition(0).peers.incarnation
    own = loop.active.partition(0).peers.incarnation.number
    for number in range(1000):
        message = Incarnation(
            VERSION, loop.active.settings.fingerprint, "p1", life.number, life.public, number, own
        )
        tell(loop, 0, "incarnations", INCARNATION.encode(message))
    forge_life(0, 1)(loop)


def lose_state(loop: ClosedLoop) -> None:
    loop.members[1].state.clear()
    loop.restart(1)


@pytest.mark.long
@pytest.mark.parametrize(
    "wrong",
    [
        forge_life(0, 1), forge_life(1, 0), forge_life(1, 2), forge_life(2, 1), far_ahead, many_lives,
        many_numbers,
        numbers_to_come, tellings_to_come, lose_state,
    ],
    ids=[
        "life-to-active", "life-of-active", "life-to-passive", "life-to-leaf", "round-far-ahead",
        "many-lives", "many-numbers",
        "numbers-to-come", "tellings-to-come", "state-lost",
    ],
)  # fmt: skip
def test_a_federation_goes_on(wrong: Callable[[ClosedLoop], None]) -> None:
    """Protects a federation from standing still until somebody is restarted, after one wrong message or one
    lost state."""
    loop = federation()
    learn(loop, ENTITIES[:3])
    wrong(loop)
    for _ in range(20):
        for number in range(3):
            loop.step(number, 1000)
    learn(loop, ENTITIES[3:])
    assert {said.entity for said in loop.predictions} == set(ENTITIES)
    held = loop.active.active_partition(0)
    assert (held.labelled.labels, held.model.version) == (6, 2)
    assert loop.now < 1010.0


def other_mask(values: bytes) -> bytes:
    """The part under another mask: all its numbers are others, its check words too."""
    numbers = np.frombuffer(values, "<u4")
    return (
        (numbers + np.random.default_rng(1).integers(1, 2**32, len(numbers), np.uint32))
        .astype("<u4")
        .tobytes()
    )


def other_check_word(values: bytes) -> bytes:
    return values[:-1] + bytes([values[-1] ^ 1])


@pytest.mark.parametrize("wrong", [other_mask, other_check_word])
def test_a_sum_whose_masks_do_not_cancel_is_never_learnt_from(wrong: Callable[[bytes], bytes]) -> None:
    """Protects the model from a part under another round's mask: the round is counted, and asked again.

    Check words say that masks cancel. A single number that somebody changes on its way they do not find:
    members' keys do."""
    loop = federation()
    for number, entity in enumerate(ENTITIES[:3]):
        loop.write_sample(entity, 0.3 * number)
    loop.settle()
    for number, entity in enumerate(ENTITIES[:3]):
        loop.write_label(entity, float(number % 2))
    damaged = 0
    for _ in range(200):
        for number in range(3):
            loop.step(number, 1000)
            for place, (channel, one) in enumerate(loop.members[0].unread):
                if channel == "sums" and not damaged:
                    assert isinstance(one, Record)
                    message = PARTIAL_SUM.decode(one.value)
                    content = PARTIAL_SUM.encode(
                        msgspec.structs.replace(message, values=wrong(message.values))
                    )
                    loop.members[0].unread[place] = channel, msgspec.structs.replace(one, value=content)
                    damaged += 1
        loop.now += 0.001
    loop.settle()
    figures = {one.labels: one.value for one in loop.active.measure() if one.name == "abandoned_rounds"}
    assert damaged == figures[(("reason", "masks"),)] == 1
    assert [one.value for one in loop.active.measure() if one.name == "timed_out_rounds"] == [0]
    assert loop.active.active_partition(0).model.version == 1


def answers(loop: ClosedLoop, party: int, content: bytes) -> list[Send | Rejection]:
    message = ROUND.decode(content)
    received = Received("rounds", message, Record("rounds", 0, 0, None, content, (), loop.now))
    replies = loop.members[party].role.receive([received], loop.now)
    return [one for one in replies if isinstance(one, Rejection) or one.channel.startswith("sums")]  # type: ignore[misc]


def test_a_round_is_answered_once_whatever_comes_between() -> None:
    """Protects columns: a round answered twice, with other columns the second time, shows their
    difference."""
    loop = federation()
    learn(loop, ENTITIES[:3])
    asked = ROUND.encode(announced(loop, 500))
    assert len(answers(loop, 2, asked)) == 1
    role = loop.members[2].role
    for number in range(MOST_LIVES + 2):
        answers(loop, 2, ROUND.encode(announced(loop, 1, root=number)))
    loop.write_sample("e0", 2.0)
    loop.step(2, 10)
    assert role is loop.members[2].role
    assert answers(loop, 2, asked) == []


def old_sum(loop: ClosedLoop, number: int) -> bytes:
    """A sum of the last party for a round in a life of the active party that is over."""
    fingerprint = loop.active.settings.fingerprint
    message = PartialSum(VERSION, fingerprint, "p2", 99, number, b"asked", SUM, [2], bytes([1]), bytes(16))
    return PARTIAL_SUM.encode(message)


def test_old_sums_are_no_rounds_and_take_the_place_of_none() -> None:
    """Protects rounds under way from sums that somebody wrote again, and the operator of a party that was
    away from being told of rounds that nobody answers."""
    loop = federation()
    learn(loop, ENTITIES[:3])
    asked = announced(loop, 500)
    assert answers(loop, 1, ROUND.encode(asked)) == []
    role = loop.members[1].role
    for number in range(1000):
        tell(loop, 1, "sums", old_sum(loop, number))
    loop.step(1, 2000)
    pending = role.partition(0).sums.pending
    assert pending.get((asked.incarnations[0], 500)) is not None
    assert len(pending) == 1
    role.receive([], loop.now + 100.0)
    counted = {(one.name, one.labels): one.value for one in role.measure()}
    assert counted["abandoned_rounds", (("reason", "timeout"),)] == 1
    assert counted["ignored_messages", (("reason", "old_incarnation"),)] == 1000
    (told,) = [one for one in role.notices() if one.reason == "round_timeout"]
    assert told.text.endswith("no part came from p2")


def test_a_round_of_too_many_entities_or_ranges_is_refused() -> None:
    """Protects a party from a sum that no record holds, at which it would end, and from memory without
    bound."""
    loop = federation()
    learn(loop, ENTITIES[:3])
    most = announced(loop, 600, entities=["e"] * MOST_ENTITIES)
    assert answers(loop, 2, ROUND.encode(most)) == []
    role = loop.members[2].role
    (reply,) = [
        one
        for one in role.receive([], loop.now + 1.0)
        if isinstance(one, Send) and one.channel.startswith("sums")
    ]
    assert len(reply.value) < MAXIMUM_BYTES
    for wrong in (
        msgspec.structs.replace(most, number=601, entities=["e"] * 200_000),
        msgspec.structs.replace(most, number=602, entities=["e"], ranges=[FeatureRange(0, 1)] * 100_000),
    ):
        (refused,) = answers(loop, 2, ROUND.encode(wrong))
        assert isinstance(refused, Rejection)
        assert isinstance(refused.error, BadRecord)
        assert refused.error.reason == "oversized"


def test_an_epoch_of_a_clock_far_ahead_is_given_up() -> None:
    """Protects revisions from being refused for as long as a party's clock was ahead when it sent its
    first."""
    role = make_worker(settings_of("p1", 2))
    role.open(0)
    task = role.partition(0)
    epochs = []
    for now in (1e9, 1000.0, 1001.0):
        task.tell_revision("e", now)
        epochs.append(msgspec.msgpack.decode(task.take_sends()[-1].value)[3])
    assert epochs == [10**15, 10**9, 10**9]


def test_a_round_in_the_life_of_another_party_is_refused() -> None:
    """Protects an active party's own rounds: one of another active party in its life would be heard before
    them."""
    loop = federation()
    learn(loop, ENTITIES[:3])
    asked = announced(loop, 500)
    own = loop.members[2].role.partition(0).peers.incarnation.number
    (refused,) = answers(
        loop, 2, ROUND.encode(msgspec.structs.replace(asked, incarnations=[own, asked.incarnations[1], own]))
    )
    assert isinstance(refused, Rejection)
    assert refused.error.reason == "malformed"


def distances(loop: ClosedLoop, number: int, entities: list[str]) -> Round:
    return msgspec.structs.replace(announced(loop, number, entities=entities), purpose=DISTANCES, ranges=[])


def refusal(loop: ClosedLoop, asked: Round) -> str | None:
    """Why the last party refuses it, None if it answers."""
    (reply,) = answers(loop, 2, ROUND.encode(asked))
    return reply.error.reason if isinstance(reply, Rejection) else None


def test_distances_are_not_answered_where_the_bandwidth_is_set() -> None:
    """Protects columns: with a bandwidth that is given nobody needs distances between entities."""
    loop = federation()
    learn(loop, ENTITIES[:3])
    assert refusal(loop, distances(loop, 500, ["e0", "e1"])) == "configuration"


def test_a_round_of_distances_is_bounded() -> None:
    """Protects memory: a record asks for so many distances at most."""
    loop = federation(bandwidth=None, block_instances=FEWEST_ENTITIES)
    for to, entity in enumerate(ENTITIES):
        loop.write_sample(entity, 0.3 * to)
    loop.settle()
    assert refusal(loop, distances(loop, 500, ["e0", "e1"] * MOST_DISTANCES)) is None
    assert refusal(loop, distances(loop, 501, ["e0", "e1"] * (MOST_DISTANCES + 1))) == "malformed"


def test_a_forged_early_sum_does_not_keep_out_the_honest_one() -> None:
    """Protects a round from one who writes in a party's name before the round is announced: only the
    announcement tells which sum is of the round."""
    loop = federation()
    learn(loop, ENTITIES[:3])
    asked = ROUND.encode(announced(loop, 500))
    settings, life = loop.active.settings, loop.active.partition(0).peers.incarnation.number
    forged = PARTIAL_SUM.encode(
        PartialSum(
            VERSION, settings.fingerprint, "p2", life, 500, b"another", SUM, [2], bytes([1]), bytes(16)
        )
    )
    (honest,) = answers(loop, 2, asked)
    assert isinstance(honest, Send)
    for content in (forged, honest.value):
        record = Record("sums", 0, 0, None, content, (), loop.now)
        received = Received("sums", PARTIAL_SUM.decode(content), record)
        assert loop.members[1].role.receive([received], loop.now) == []
    passed_on = [one for one in answers(loop, 1, asked) if isinstance(one, Send)]
    assert len(passed_on) == 1
