"""What a party answers in its life: features of one scale alone, and so many of an entity; what is more is
counted and told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from fdskl.makers import life_of, lives, make_worker, settings_of

from streamfl.contract.role import Received, Record, Rejection, Send, StateChange
from streamfl.encoding.wire import VERSION
from streamfl.fdskl.messages import (
    DISTANCES,
    INCARNATION,
    PARTIAL_SUM,
    PHASES,
    ROUND,
    FeatureRange,
    Incarnation,
    PartialSum,
    Round,
)
from streamfl.fdskl.party.answered import FARTHEST, MANY_DISTANCES
from streamfl.fdskl.party.role import FdsklParty
from streamfl.fdskl.sums.circle import from_circle, to_circle
from streamfl.fdskl.sums.contributions import Contributions
from streamfl.fdskl.sums.own_columns import OwnColumns
from streamfl.records.samples import Sample
from streamfl.state.changelog import ChangedParts

BEGIN, REPLY, MOST = 1000.0, 0.7, 12


class Asked:
    """The passive party of two, and rounds in the active one's name. state: its changelog."""

    def __init__(
        self, has_keys: bool = True, state: dict[bytes, bytes] | None = None, life: int = 0, **sections: Any
    ) -> None:
        sections |= {
            # On a memory bus nobody can be a stranger, as where members have keys.
            "bus": {"url": "memory://" if has_keys else "kafka://localhost:9092"},
            "learning": {"bandwidth": None, "window": 32},
            "privacy": {"features_per_entity": MOST},
            "standardisation": {"columns": False, "transform": "none"},
        }
        self.role: FdsklParty = make_worker(settings_of("p1", 2, **sections), lives(1, life))
        self.role.open(0)
        for key, value in (state or {}).items():
            self.role.restore(StateChange("state", 0, key, value))
        self._life, self._number, self.now = life, 0, BEGIN
        own = life_of(0, 50)
        message = Incarnation(VERSION, self.role.settings.fingerprint, "p0", own.number, own.public, 1, 0)
        self.take("incarnations", message, INCARNATION.encode(message))

    def take(
        self, channel: str, message: Any, value: bytes = b"", key: str = ""
    ) -> Sequence[Send | Rejection]:
        record = Record(channel, 0, 0, key.encode(), value, (), self.now)
        return self.role.receive([Received(channel, message, record)], self.now)

    def show(self, *entities: str) -> None:
        for entity in entities:
            self.take("samples", Sample(entity, "s", (1.0, -2.0), None), key=entity)

    def ask(
        self,
        entities: list[str],
        first: int = 0,
        count: int = 4,
        bandwidth: float = 1.0,
        purpose: int = PHASES,
    ) -> list[Any]:
        """What comes at once."""
        numbers, self._number = [life_of(0, 50).number, life_of(1, self._life).number], self._number + 1
        ranges = [FeatureRange(first, count)] if purpose == PHASES else []
        asks = self.role.settings.fingerprint
        message = Round(VERSION, asks, "p0", numbers, self._number, purpose, bandwidth, ranges, entities)
        return self.sums(self.take("rounds", message, ROUND.encode(message)))

    def wait(self) -> list[Any]:
        self.now += REPLY
        return self.sums(self.role.receive([], self.now))

    @staticmethod
    def sums(replies: Sequence[Send | Rejection]) -> list[Any]:
        """Sums that were sent, and reasons of what was refused."""
        sums: list[Any] = [one.error.reason for one in replies if isinstance(one, Rejection)]
        return sums + [
            PARTIAL_SUM.decode(one.value)
            for one in replies
            if isinstance(one, Send) and one.channel.startswith("sums")
        ]

    def state(self) -> dict[bytes, bytes]:
        return {change.key: change.value for change in self.role.changed_state() if change.value is not None}

    def figure(self, name: str) -> float:
        return sum(one.value for one in self.role.measure() if one.name == name)

    def frequencies(self, bandwidth: float) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
        """In units of the kernel's width, and offsets."""
        drawn = self.role.partition(0).sums.own_part.contributions.frequencies(bandwidth)
        return drawn.frequencies(0, 50) * bandwidth, drawn.offsets(0, 50)


def known(found: list[Any]) -> list[int]:
    (one,) = found
    assert isinstance(one, PartialSum), one
    return list(one.known)


def test_two_bandwidths_have_no_frequency_in_common() -> None:
    """Protects projections from whoever asks at two scales: of the same frequencies the coarse one tells the
    fine one's whole turns and takes the offset off. The first scale keeps what a model of an earlier release
    was learnt from.
    """
    asked = Asked()
    before = asked.frequencies(1.0)
    asked.show("a")
    assert known(asked.ask(["a"])) == [1]
    for one, other in zip(before, asked.frequencies(1.0), strict=True):
        np.testing.assert_array_equal(one, other)
    assert known(asked.ask(["a"], bandwidth=1.5)) == [1]
    restored = Asked(state=asked.state(), life=1)
    for again in (asked, restored):
        (frequencies, offsets), other = again.frequencies(1.5), before
        assert abs(np.corrcoef(frequencies.ravel(), other[0].ravel())[0, 1]) < 0.4
        assert (offsets != other[1]).all()
    np.testing.assert_array_equal(asked.frequencies(1.5)[0], restored.frequencies(1.5)[0])


class ToldBefore(msgspec.Struct, array_like=True):
    """The record ``told`` as 0.1 reads and writes it."""

    number: int
    telling: int


def test_the_release_before_takes_what_is_remembered() -> None:
    """Protects the way back to 0.1, which refuses records that it does not know: what was answered is at the
    end of one that it reads. Where it wrote that anew, it drew features of any bandwidth alike, and so does
    this release when it comes again."""
    asked = Asked()
    asked.show("a", "b")
    for purpose in (PHASES, DISTANCES):
        assert known(asked.ask(["a", "b"], purpose=purpose)) == [1, 1]
    state = asked.state()
    assert {key.partition(b"/")[0] for key in state} <= {
        b"columns",
        b"secret",
        b"told",
        b"life",
        b"entity",
        b"peer",
    }
    told = msgspec.msgpack.decode(state[b"told"], type=ToldBefore)
    assert told.number == asked.role.partition(0).peers.incarnation.number
    kept = Asked(state=state, life=1)
    before = Asked(state={**state, b"told": msgspec.msgpack.encode(told)}, life=1)
    answers = [one.role.partition(0).peers.answers for one in (kept, before)]
    assert [(one.bandwidth, one.distances) for one in answers] == [(1.0, 1), (0.0, 0)]
    (first, offsets), (anew, other) = before.frequencies(1.5), kept.frequencies(1.5)
    np.testing.assert_array_equal(offsets, asked.frequencies(1.0)[1])
    np.testing.assert_allclose(first, asked.frequencies(1.0)[0])
    assert (anew != first).all()
    assert (other != offsets).all()


def test_features_that_the_release_before_draws_otherwise_have_no_way_back() -> None:
    """Protects predictions from 0.1, whose features of a second bandwidth are others than the model was
    learnt with: it finds a record that it refuses. Where all draw from the shared seed they are the same.
    """
    for frequencies in ("private", "shared"):
        asked = Asked(aggregation={"frequencies": frequencies})
        asked.show("a")
        state: dict[bytes, bytes] = {}
        for bandwidth in (1.0, 1.0, 1.5):
            state |= asked.state()
            assert b"rescaled" not in state
            assert known(asked.ask(["a"], bandwidth=bandwidth)) == [1]
        state |= asked.state()
        assert (b"rescaled" in state) == (frequencies == "private")
        for again in (asked, Asked(state=state, life=1, aggregation={"frequencies": frequencies})):
            assert known(again.ask(["a"], bandwidth=2.0)) == [1]
            assert b"rescaled" not in again.state()


@pytest.mark.parametrize("factor", [1.01 * FARTHEST, 0.99 / FARTHEST, 1e9])
def test_a_bandwidth_that_nobody_finds_is_refused(factor: float) -> None:
    """Protects projections from a scale at which no phase turns around. Where members have no keys a stranger
    may have asked first, so there it is told, and the model goes on.
    """
    for has_keys in (True, False):
        first = Asked(has_keys)
        first.show("a")
        assert known(first.ask(["a"], bandwidth=2.0)) == [1]
        for asked in (first, Asked(has_keys, first.state(), 1)):
            found = asked.ask(["a"], bandwidth=2.0 * factor)
            assert found == ["implausible"] if has_keys else known(found) == [1]
            assert asked.figure("implausible_bandwidths") == 1
            assert [one.reason for one in asked.role.notices() if one.reason == "implausible_bandwidth"]
            assert known(asked.ask(["a"], bandwidth=2.0)) == [1]


def test_an_entity_tells_so_many_features_and_is_unknown_then() -> None:
    """Protects an entity from being asked about all its life: it is answered for as one that is not known, as
    late and in the same form, and stays so after a restart. What was told before may be asked for again.
    """
    asked = Asked()
    asked.show("a", "b")
    for _ in range(5):
        assert known(asked.ask(["a", "b"])) == [1, 1]
    states = asked.state()
    for first in (4, 8):
        assert known(asked.ask(["a"], first)) == [1]
        states |= asked.state()
    for again in (asked, Asked(state=states, life=1)):
        assert again.ask(["a", "b"], 8) == []
        assert again.ask(["nobody", "b"], 8) == []
        found = again.wait()
        assert [list(one.known) for one in found] == [[0, 1], [0, 1]]
        assert len({len(one.values) for one in found}) == 1
        assert again.figure("spent_entities") == 1
        assert [one.reason for one in again.role.notices() if one.reason == "spent_entity"]
        # Other columns are those of the same entity, and make its answer no sooner.
        assert again.ask(["a"], 8) == []
        assert again.sums(again.take("samples", Sample("a", "s", (3.0, -2.0), None), key="a")) == []
        assert known(again.wait()) == [0]


def test_features_of_another_bandwidth_are_other_features() -> None:
    """Protects the bound from whoever asks for the same numbers at bandwidths that differ a little: each
    draws anew."""
    asked = Asked()
    asked.show("a")
    for bandwidth in (1.0, 1.0, 1.1, 1.1, 1.2):
        assert known(asked.ask(["a"], bandwidth=bandwidth)) == [1]
    assert asked.ask(["a"], bandwidth=1.0) == []
    # From where no bound is kept to nothing is counted: it would be a record of the changelog for each of a
    # model's blocks.
    free = Asked(has_keys=False)
    free.show("a")
    assert known(free.ask(["a"])) == [1]
    assert b"entity/a" in free.state()
    assert known(free.ask(["a"], 4)) == [1]
    assert b"entity/a" not in free.state()


def test_features_are_counted_once_wherever_they_lie() -> None:
    """Protects the count: neighbours in any order, and again, are counted once; far ones in full, however
    they alternate."""
    columns = OwnColumns(ChangedParts(), 1, 10.0, 9, {}, 100)
    columns.put("a", b"12345678", 0.0)

    def told(*ranges: tuple[int, int], bandwidth: float | None = None) -> int:
        for first, count in ranges:
            columns.ask("a", 0.0, [FeatureRange(first, count)], bandwidth)
        return columns._entries["a"].features

    assert told((10, 10), (20, 10), (0, 10), (5, 20)) == 30
    assert told((1000, 20)) == 50
    assert told((0, 10)) == 60
    assert told((0, 10), (5, 10), bandwidth=2.0) == 75
    assert not columns.is_spent("a")
    assert told((2000, 25)) == 100
    assert columns.is_spent("a")


def test_more_distances_than_a_federation_needs_are_told() -> None:
    """Protects the operator from not knowing: distances are asked for once, and again where a round or a
    state was lost."""
    asked = Asked()
    asked.show("a", "b")
    for number in range(MANY_DISTANCES + 1):
        assert known(asked.ask(["a", "b"], purpose=DISTANCES)) == [1, 1]
        told = [one.reason for one in asked.role.notices() if one.reason == "many_distances"]
        assert bool(told) == (number >= MANY_DISTANCES)


def test_noise_is_of_the_entity_and_not_of_the_question() -> None:
    """Protects what noise promises from an average: each round of another number, of other features, and in
    another life, is of one draw for the entity's columns. At this scale no phase turns around, so each
    round's features are solved for what they are of."""
    row = np.array([[0.3, -0.2, 0.5, 0.1]])
    settings = settings_of(
        "p1",
        2,
        samples={"topic": "samples", "features": [f"c{number}" for number in range(4)]},
        aggregation={"mask": "none", "study": True, "circle_bits": 64, "secret_file": "secret"},
        privacy={"input_norm": 1.0, "input_noise": 0.5},
    )

    def seen(first: int, entity: str = "a", columns: np.ndarray = row) -> np.ndarray:  # type: ignore[type-arg]
        part = Contributions(settings, b"s" * 32, "a secret", 0)
        asked = Round(VERSION, 7, "p0", [1, 2], first, PHASES, 100.0, [FeatureRange(first, 40)], [entity])
        numbers = part.numbers(asked, b"round %d" % first, {}, columns)[:40]
        drawn = part.frequencies(100.0)
        turns = from_circle(numbers - to_circle(drawn.offsets(first, 40), 64))
        phases = (turns + np.pi) % (2 * np.pi) - np.pi
        return np.asarray(np.linalg.lstsq(drawn.frequencies(first, 40), phases, rcond=None)[0])

    once = seen(0)
    assert np.abs(once - row[0]).max() > 0.1
    for first in (40, 80, 4000):
        np.testing.assert_allclose(seen(first), once, atol=1e-9)
    assert np.abs(seen(0, "b") - once).max() > 0.1
    assert np.abs(seen(0, columns=row + 0.001) - once).max() > 0.1
