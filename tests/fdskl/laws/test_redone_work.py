"""Work that is redone with other columns: who reads every message ever sent, committed or not, learns nothing
of them."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from fdskl.makers import life_of, lives, make_worker, settings_of
from numpy.typing import NDArray
from scipy.stats import kstest

from streamfl.contract.role import Received, Record, Rejection, Send, StateChange
from streamfl.encoding.wire import VERSION
from streamfl.fdskl.messages import INCARNATION, PARTIAL_SUM, PHASES, ROUND, FeatureRange, Incarnation, Round
from streamfl.fdskl.party.role import FdsklParty
from streamfl.fdskl.sums import masks
from streamfl.fdskl.sums.circle import to_circle
from streamfl.fdskl.sums.keystream import Keystream
from streamfl.records.samples import Sample

ENTITIES = [f"e{number}" for number in range(8)]
FEATURES, NOW = 512, 1000.0
COLUMNS = np.random.default_rng(3).normal(size=(len(ENTITIES), 2))
# What the columns change by from one message to the next.
STEP = np.array([0.31, -0.17])

# By key, the bytes of its stream that were used.
Ranges = dict[bytes, list[tuple[int, int]]]


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> Ranges:
    """What is used of keystreams for masks, whatever becomes of the messages."""
    used: Ranges = defaultdict(list)

    class Recorded(Keystream):
        def __init__(self, key: bytes, bits: int, first: int = 0) -> None:
            super().__init__(key, bits, first)
            self._key, self._at = key, first * bits // 8

        def fill(self, numbers: NDArray[Any]) -> None:
            used[self._key].append((self._at, self._at + numbers.nbytes))
            self._at += numbers.nbytes
            super().fill(numbers)

    monkeypatch.setattr(masks, "Keystream", Recorded)
    return used


class Leaf:
    """One process of party p1 of three, which nobody sends to; the test plays the others.

    first: number of its first life.
    """

    def __init__(self, first: int) -> None:
        self.settings = settings_of(
            "p1", 3, aggregation={"topology": "star"}, standardisation={"columns": False}
        )
        self.role: FdsklParty = make_worker(self.settings, lives(1, first))
        self.told = 0

    def open(self, partition: int, state: dict[bytes, bytes]) -> None:
        self.role.open(partition)
        for key, value in state.items():
            self.role.restore(StateChange("state", partition, key, value))
        for party in (0, 2):
            life = life_of(party, 5)
            self.told += 1
            message = Incarnation(
                VERSION, self.role.fingerprint, f"p{party}", life.number, life.public, self.told, 0
            )
            self.hear("incarnations", partition, message, INCARNATION.encode(message))

    def life(self, partition: int) -> int:
        return self.role.partition(partition).peers.incarnation.number

    def see(self, partition: int, version: int) -> None:
        """Its columns of all entities come, of this version."""
        for entity, row in zip(ENTITIES, COLUMNS + version * STEP, strict=True):
            self.hear("samples", partition, Sample(entity, "s", tuple(row.tolist()), None), b"")

    def commit(self, partition: int) -> dict[bytes, bytes]:
        """What is remembered so far, for who begins with an empty changelog."""
        changes = self.role.changed_state()
        return {one.key: one.value for one in changes if one.partition == partition and one.value is not None}

    def announced(self, partition: int, number: int) -> Round:
        """A round that names this life, always of the same features and entities."""
        numbers = [life_of(0, 5).number, self.life(partition), life_of(2, 5).number]
        ranges = [FeatureRange(0, FEATURES)]
        return Round(VERSION, self.role.fingerprint, "p0", numbers, number, PHASES, 1.0, ranges, ENTITIES)

    def answer(self, partition: int, announced: Round) -> NDArray[np.uint32] | None:
        """The numbers that it sends, as anybody reads them who does not wait for the commit; None: it sends
        nothing."""
        replies = self.hear("rounds", partition, announced, ROUND.encode(announced))
        sums = [
            PARTIAL_SUM.decode(one.value)
            for one in replies
            if isinstance(one, Send) and one.channel == "sums/p0"
        ]
        return np.frombuffer(sums[0].values, "<u4")[: len(ENTITIES) * FEATURES] if sums else None

    def hear(self, channel: str, partition: int, message: Any, value: bytes) -> list[Any]:
        key = message.client.encode() if isinstance(message, Sample) else None
        record = Record(channel, partition, 0, key, value, (), NOW)
        replies = list(self.role.receive([Received(channel, message, record)], NOW))
        assert not [one for one in replies if isinstance(one, Rejection)]
        return replies

    def hidden(self, version: int) -> NDArray[np.uint32]:
        """What its numbers hide, without any mask."""
        drawn = self.role.partition(0).sums.own_part.contributions.frequencies(1.0)
        return np.asarray(
            to_circle(drawn.partial_phases(COLUMNS + version * STEP, [(0, FEATURES)]), 32)
        ).ravel()


def every_message() -> tuple[Leaf, list[tuple[int, NDArray[np.uint32]]]]:
    """All that a party ever sends of the same features and entities, with the version of the columns in each.

    Its step is aborted and done again; its process is killed and another begins; the old one goes on as a
    zombie; and a second partition has the same entities. Each time the columns are others.
    """
    said: list[tuple[int, NDArray[np.uint32]]] = []

    def sent(version: int, numbers: NDArray[np.uint32] | None) -> None:
        assert numbers is not None
        said.append((version, numbers))

    leaf = Leaf(first=0)
    leaf.open(0, {})
    leaf.see(0, 0)
    state = leaf.commit(0)
    first = leaf.announced(0, 1)
    sent(0, leaf.answer(0, first))
    # The same again in the same life, as after a rebalance that gave nothing away: not answered.
    assert leaf.answer(0, first) is None
    # The commit is refused: the partition is given back, comes anew, and everything since the last commit is
    # done again.
    leaf.role.close(0)
    leaf.open(0, state)
    leaf.see(0, 1)
    assert leaf.answer(0, first) is None
    sent(1, leaf.answer(0, leaf.announced(0, 1)))
    # Killed: another process, with what was committed last, and the rounds since.
    zombie, leaf = leaf, Leaf(first=10)
    leaf.open(0, state)
    leaf.see(0, 2)
    assert leaf.answer(0, first) is None
    sent(2, leaf.answer(0, leaf.announced(0, 1)))
    # Who was thought dead goes on, with other columns, and answers what names its life; the other one does
    # not.
    zombie.see(0, 3)
    late = zombie.announced(0, 2)
    sent(3, zombie.answer(0, late))
    assert leaf.answer(0, late) is None
    # A second partition of the same process: the same entities, features and number.
    leaf.open(1, {})
    leaf.see(1, 4)
    sent(4, leaf.answer(1, leaf.announced(1, 1)))
    leaf.see(0, 5)
    sent(5, leaf.answer(0, leaf.announced(0, 2)))
    return leaf, said


def agreement(one: NDArray[np.uint32], other: NDArray[np.uint32]) -> float:
    """Mean cosine of the angle between two lists of numbers on the circle: 1 where they are equal, about 0 by
    chance."""
    return float(np.cos((one - other) * (2 * np.pi / 2**32)).mean())


def test_redone_work_shows_no_difference_of_columns(ranges: Ranges) -> None:
    """Protects columns from whoever subtracts two messages: no byte of a keystream hides two things, and
    every difference is uniform and follows the columns no more than chance does.
    """
    leaf, said = every_message()
    assert len(said) == 6
    # Two others in each round, and nobody's key in two of them.
    assert len(ranges) == 2 * len(said)
    for parts in ranges.values():
        assert all(one[1] == other[0] for one, other in pairwise(parts)), "a range is used twice"
    for (one, left), (other, right) in combinations(said, 2):
        found, truth = left - right, leaf.hidden(one) - leaf.hidden(other)
        assert kstest(found / 2**32, "uniform").pvalue > 1e-3, (one, other)
        assert abs(agreement(found, truth)) < 4 / np.sqrt(2 * len(found)), (one, other)
    for _, numbers in said:
        assert kstest(numbers / 2**32, "uniform").pvalue > 1e-3


def test_one_mask_for_two_messages_would_show_it(ranges: Ranges, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the test above from finding nothing because it looks at nothing: where rounds and lives have
    no part in a mask, the difference of two messages is that of the columns, to the last bit.
    """
    monkeypatch.setattr(
        masks, "mask_key", lambda pair_secret, round_id, purpose, bits: b"one key for all".ljust(32)
    )
    leaf, said = every_message()
    assert any(one[1] > other[0] for parts in ranges.values() for one, other in pairwise(parts))
    (one, left), (other, right) = said[:2]
    found, truth = left - right, leaf.hidden(one) - leaf.hidden(other)
    assert (found == truth).all()
    assert kstest(found / 2**32, "uniform").pvalue < 1e-9
