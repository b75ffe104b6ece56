"""The laws of a role on FDSKL's worker: a passive party below others and above others, the active party, and
one alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
from fdskl.makers import life_of, make_worker, secret_bytes, settings_of
from hypothesis import strategies as st

from streamfl.contract.role import Received, Record, Send
from streamfl.encoding.wire import LONGEST_NAME, VERSION
from streamfl.fdskl.config import WORKER, FdsklSettings
from streamfl.fdskl.learning.labelled import CHUNK
from streamfl.fdskl.messages import (
    INCARNATION,
    PARTIAL_SUM,
    PHASES,
    REVISION,
    ROUND,
    TURN,
    FeatureRange,
    Incarnation,
    PartialSum,
    Prediction,
    Revision,
    Round,
    Turn,
    identity_of,
)
from streamfl.fdskl.roles import ROLES
from streamfl.fdskl.sums.contributions import numbers_of
from streamfl.fdskl.sums.masks import OwnIncarnation, masked
from streamfl.fdskl.sums.pending_sums import SUM
from streamfl.fdskl.sums.topology import aggregation
from streamfl.records.labels import Label
from streamfl.records.samples import Sample
from streamfl.testing.role_laws import Extreme, RoleLaws, Subject, Traffic

ENTITIES = [f"e{number}" for number in range(6)]
BEGIN = 1000.0
EPOCH = int(BEGIN * 1e6)
PARTIES = 4
# Of a tree of four that ends at p0: p1 hears p2 and p3, who hear nobody.
TREE = aggregation("tree", PARTIES, 0)
NUMBERS = st.sampled_from([-2.5, -1.0, 0.0, 0.3, 1.75])


def arrived(channel: str, partition: int, message: Any, value: bytes, now: float, key: str = "") -> Received:
    return Received(channel, message, Record(channel, partition, 0, key.encode(), value, (), now))


def partition_of(entity: str) -> int:
    return int(entity[1:]) % 2


def sample(draw: st.DrawFn, now: float) -> Received:
    entity = draw(st.sampled_from(ENTITIES))
    features = (draw(NUMBERS), draw(NUMBERS))
    return arrived("samples", partition_of(entity), Sample(entity, "s", features, None), b"", now, entity)


@cache
def pair_secret(one: OwnIncarnation, other: OwnIncarnation) -> bytes:
    return one.pair_secret(other.public)


class Others:
    """The parties that a test plays, with their real keys, in one partition of the subject.

    The subject has the incarnation ``partition`` of its own, as it opens its partitions in order; others have
    their n-th."""

    def __init__(self, settings: FdsklSettings, partition: int) -> None:
        self.settings = settings
        self.parties = len(settings.federation.parties)
        self.own = settings.federation.parties.index(settings.own_party or "")
        self.partition = partition
        self.fingerprint = make_worker(settings).settings.fingerprint
        self.heard = dict.fromkeys(range(self.parties), 0)
        self.told = 0

    def life(self, party: int) -> OwnIncarnation:
        return life_of(
            party, self.partition if party == self.own else 10 + self.partition + 2 * self.heard[party]
        )

    def incarnation(self, party: int, now: float, knows: bool = True) -> Received:
        life, known = self.life(party), self.life(self.own).number if knows else 0
        self.told += 1
        message = Incarnation(
            VERSION, self.fingerprint, f"p{party}", life.number, life.public, self.told, known
        )
        return arrived("incarnations", self.partition, message, INCARNATION.encode(message), now)

    def round(
        self, number: int, incarnations: list[int], entities: list[str], count: int, now: float
    ) -> tuple[Round, Received]:
        # Each fourth with another bandwidth.
        ranges, bandwidth = [FeatureRange(4, count)], 1.5 if number % 4 == 3 else 1.0
        message = Round(
            VERSION, self.fingerprint, "p0", incarnations, number, PHASES, bandwidth, ranges, entities
        )
        return message, arrived("rounds", self.partition, message, ROUND.encode(message), now)

    @property
    def incarnations(self) -> list[int]:
        return [self.life(party).number for party in range(self.parties)]

    def sum_of(
        self, party: int, announced: Round, content: bytes, now: float, wrong: bool = False
    ) -> Received:
        """The masked sum of a party and all below it, of phases that follow from the round."""
        identity = identity_of(content, "f", self.partition)
        size, dtype = numbers_of(announced, self.settings.aggregation.circle_bits)
        below = sorted(TREE.below(party) if self.parties == PARTIES else {party})
        total = np.zeros(size, dtype)
        for one in below:
            life = self.life(one)
            others = {
                other: pair_secret(life, self.life(other)) for other in range(self.parties) if other != one
            }
            random = np.random.default_rng([one, announced.number])
            numbers = random.integers(0, 2**32, size - 2, dtype=np.uint64).astype(dtype)
            total += masked(
                numbers, others if self.settings.aggregation.mask == "one-time" else {}, one, identity, b"sum"
            )
        total[-1] += wrong
        known = bytes([len(below)] * len(announced.entities))
        key = announced.incarnations[0], announced.number
        message = PartialSum(
            VERSION, self.fingerprint, f"p{party}", *key, identity, SUM, below, known, total.tobytes()
        )
        return arrived("sums", self.partition, message, PARTIAL_SUM.encode(message), now)


@st.composite
def passive_traffic(draw: st.DrawFn, settings: FdsklSettings) -> Traffic:
    """Samples, lives of the others, rounds named correctly or not, and the sums of parties below, in any
    order."""
    played = [Others(settings, partition) for partition in (0, 1)]
    below = TREE.children[played[0].own]
    now, batches = BEGIN, []
    announced: list[list[tuple[Round, Received]]] = [[], []]
    for place in range(draw(st.integers(1, 6))):
        batch = []
        if not place and draw(st.integers(0, 3)):
            batch += [
                others.incarnation(party, now)
                for others in played
                for party in range(PARTIES)
                if party != others.own
            ]
        for _ in range(draw(st.integers(0, 8))):
            others = draw(st.sampled_from(played))
            said = announced[others.partition]
            what = draw(st.sampled_from(["sample", "sample", "round", "round", "sum", "life"]))
            if what == "sample":
                batch.append(sample(draw, now))
            elif what == "life":
                party = draw(st.sampled_from([one for one in range(PARTIES) if one != others.own]))
                others.heard[party] += draw(st.booleans())
                batch.append(others.incarnation(party, now, draw(st.booleans())))
            elif what == "round":
                entities = draw(st.lists(st.sampled_from(ENTITIES), min_size=1, max_size=3, unique=True))
                named = others.incarnations
                if draw(st.integers(0, 5)) == 0:
                    named[draw(st.integers(1, PARTIES - 1))] += 1
                message, received = others.round(len(said), named, entities, draw(st.integers(1, 3)), now)
                said.append((message, received))
                if draw(st.integers(0, 4)):
                    batch.append(received)
            elif said and below:
                message, received = draw(st.sampled_from(said))
                assert received.record.value is not None
                batch.append(others.sum_of(draw(st.sampled_from(below)), message, received.record.value, now))
        batches.append((now, batch))
        if draw(st.booleans()):
            batches.append((now, []))
        now += draw(st.sampled_from([0.0, 0.5, 3.0]))
    return Traffic(batches, partitions=[0, 1])


class Log:
    """Turns of the subject, p0, and of p1, which a test plays, in one partition and in the order in which
    both read them."""

    def __init__(self, others: Others) -> None:
        self._others = others
        self.said: list[Turn] = []
        self._read = 0
        self.fingerprint = 0
        if len(others.settings.federation.actives) > 1:
            role = make_worker(others.settings)
            role.open(0)
            shared = role.active_partition(0).shared
            assert shared is not None
            self.fingerprint = shared.fingerprint

    def next(self, says: bool, now: float) -> list[Received]:
        """What the subject reads next. says: whether p1 first says what it can say."""
        if says:
            self._say()
        if self._read == len(self.said):
            return []
        message = self.said[self._read]
        self._read += 1
        return [arrived("turns", self._others.partition, message, TURN.encode(message), now)]

    def _say(self) -> None:
        queue: list[tuple[str, int]] = []
        for message in self.said:
            if message.learnt:
                queue.pop(0)
            else:
                queue.append((message.sender, message.number))
        own = sum(message.sender == "p1" and not message.learnt for message in self.said)
        ended = sum(message.learnt for message in self.said)
        if own and queue[:1] == [("p1", own)]:
            first = max(0, (ended + 1) * 2 - 6)
            self.said.append(Turn(VERSION, self.fingerprint, "p1", own, True, ended, first, 1.0, 0.999))
        elif not any(sender == "p1" for sender, _ in queue):
            self.said.append(Turn(VERSION, self.fingerprint, "p1", own + 1, False, 0, 0, 1.0, 1.0))


@st.composite
def active_traffic(draw: st.DrawFn, settings: FdsklSettings) -> Traffic:
    """Samples, labels, revisions and lives of others; sums for whatever rounds were announced in an earlier
    batch."""
    played = [Others(settings, partition) for partition in (0, 1)]
    parties = played[0].parties
    twin = make_worker(settings)
    for partition in (0, 1):
        twin.open(partition)
    now, revisions = BEGIN, 0
    batches: list[tuple[float, list[Received]]] = []
    asked: list[list[tuple[Round, bytes]]] = [[], []]
    several = len(settings.federation.actives) > 1
    logs = [Log(others) for others in played]
    for place in range(draw(st.integers(1, 7))):
        batch, known = [], len(batches)
        if not place and draw(st.integers(0, 3)):
            batch += [others.incarnation(party, now) for others in played for party in range(1, parties)]
        for _ in range(draw(st.integers(0, 8))):
            others = draw(st.sampled_from(played))
            what = draw(
                st.sampled_from(
                    ["sample", "sample", "label", "label", "sum", "sum", "sum", "life", "revision"]
                )
            )
            if what == "sample":
                batch.append(sample(draw, now))
            elif what == "label":
                entity = draw(st.sampled_from(ENTITIES))
                label = Label(entity, entity, float(draw(st.integers(0, 1))))
                batch.append(arrived("labels", partition_of(entity), label, b"", now, entity))
            elif parties == 1:
                continue
            elif what == "life":
                party = draw(st.integers(1, parties - 1))
                others.heard[party] += draw(st.integers(0, 3)) == 0
                batch.append(others.incarnation(party, now, draw(st.booleans())))
            elif what == "revision":
                revisions += 1
                entity = draw(st.sampled_from(ENTITIES))
                message = Revision(VERSION, others.fingerprint, "p1", EPOCH, revisions, entity)
                batch.append(
                    arrived("revisions", partition_of(entity), message, REVISION.encode(message), now)
                )
            elif several and what == "sum" and draw(st.integers(0, 2)) == 0:
                batch += logs[others.partition].next(draw(st.booleans()), now)
            elif asked[others.partition]:
                announced, content = draw(st.sampled_from(asked[others.partition][-3:]))
                batch.append(others.sum_of(1, announced, content, now, wrong=draw(st.integers(0, 7)) == 0))
        batches.append((now, batch))
        if draw(st.integers(0, 2)):
            batches.append((now, []))
        for _, messages in batches[known:]:
            for one in twin.receive(messages, now):
                if isinstance(one, Send) and one.channel == "rounds/p1":
                    assert one.partition is not None
                    asked[one.partition].append((ROUND.decode(one.value), one.value))
                elif isinstance(one, Send) and one.channel == "turns":
                    assert one.partition is not None
                    logs[one.partition].said.append(TURN.decode(one.value))
        now += draw(st.sampled_from([0.0, 0.2, 0.5, 3.0]))
    return Traffic(batches, partitions=[0, 1])


def written(channel: str, content: object, key: str = "k") -> tuple[str, Record]:
    """JSON of anything that has names, MessagePack of anything else."""
    value = json.dumps(content).encode() if isinstance(content, dict) else msgspec.msgpack.encode(content)
    return channel, Record(channel, 0, 0, key.encode(), value)


def decoders(settings: FdsklSettings) -> dict[str, Callable[[Record], Any]]:
    return {name: one.decode for name, one in ROLES[WORKER].channels(settings).inputs.items()}


def anybody(settings: FdsklSettings, extreme: Extreme) -> list[tuple[str, Record]]:
    """What users and other parties write, to a passive or to the active party."""
    others = Others(settings, 0)
    name, number, whole = extreme.name, extreme.number, extreme.whole
    heard = decoders(settings)
    print_, records = others.fingerprint, []

    def samples(factor: float) -> list[tuple[str, Record]]:
        return [
            written("samples", {"x": number * factor, "y": number}, one) for one in (name, "b", "c") if one
        ]

    records += samples(1.0)
    for party in range(others.parties):
        if party != others.own:
            life = others.life(party)
            records.append(
                written(
                    "incarnations", [VERSION, print_, f"p{party}", life.number, life.public, whole, whole]
                )
            )
    if "labels" in heard:
        records += [written("labels", {"y": 1}, one) for one in (name, "b", "c") if one]
    if "revisions" in heard:
        records += [
            written("revisions", [VERSION, print_, "p1", epoch, whole, one])
            for one in (name, "b")
            for epoch in (whole, EPOCH)
        ]
    if "turns" in heard:
        turns = Log(others).fingerprint
        for learnt, bandwidth in ((False, 1.0), (True, abs(number))):
            records.append(written("turns", [VERSION, turns, "p1", 1, learnt, 0, 0, bandwidth, 0.5, b""]))
    if "rounds" in heard:
        asks = "p1" if others.own == 0 else "p0"
        for place, entities in enumerate(([name, "b"], [name] * (900 if len(name) <= LONGEST_NAME else 1))):
            ranges = [[whole, 2], [4, 3]]
            content = [
                VERSION,
                print_,
                asks,
                others.incarnations,
                whole + place,
                PHASES,
                number,
                ranges,
                entities,
            ]
            records.append(written("rounds", content))
            value = records[-1][1].value or b""
            for child in TREE.children[others.own] if asks == "p0" else ():
                asked = [FeatureRange(*one) for one in ranges]
                with_names = Round(
                    VERSION, print_, "p0", others.incarnations, whole + place, PHASES, number, asked, entities
                )
                if 0 <= whole <= 2**53:
                    records.append(("sums", others.sum_of(child, with_names, value, 0.0).record))
    return [*records, *samples(0.5)]


def life(
    public: bytes = b"", number: int | None = None, sender: str = "", fingerprint: int | None = None
) -> Callable[..., Any]:
    def made(others: Others) -> Received:
        known = life_of(9, 9)
        message = Incarnation(
            VERSION,
            others.fingerprint if fingerprint is None else fingerprint,
            sender or ("p1" if others.own != 1 else "p2"),
            known.number if number is None else number,
            public or known.public,
            10**6,
            0,
        )
        return arrived("incarnations", 0, message, INCARNATION.encode(message), BEGIN)

    return made


def bad_messages(settings: FdsklSettings) -> list[tuple[Received, str]]:
    """What each party refuses wherever it comes."""
    others = Others(settings, 0)
    if others.parties == 1:
        return [(arrived("labels", 0, Label("e0", "e0", 0.5), b"", BEGIN), "label")]
    stranger = others.own + 1 if others.own < PARTIES - 1 else 1
    bad = [
        (life(number=5)(others), "malformed"),
        (life(bytes(31))(others), "malformed"),
        (life(sender="stranger")(others), "forged"),
        (life(sender=f"p{others.own}")(others), "forged"),
        (life(fingerprint=others.fingerprint + 1)(others), "configuration"),
    ]
    announced, received = others.round(10**6, others.incarnations, ["e0"], 1, BEGIN)
    content = received.record.value
    assert content is not None

    def summed(**changes: Any) -> Received:
        child = (TREE.children[others.own] or (stranger,))[0]
        message = others.sum_of(child, announced, content, BEGIN).message
        message = msgspec.structs.replace(message, **changes)
        return arrived("sums", 0, message, PARTIAL_SUM.encode(message), BEGIN)

    bad += [
        (summed(sender="stranger"), "forged"),
        (summed(contributors=[others.own]), "topology"),
        (summed(stage=90), "topology"),
        (summed(fingerprint=0), "configuration"),
    ]
    if others.own == 0:
        revision = Revision(VERSION, others.fingerprint, "p1", EPOCH * 10**4, 1, "e0")
        bad += [
            (arrived("labels", 0, Label("e0", "e0", 0.5), b"", BEGIN), "label"),
            (arrived("revisions", 0, msgspec.structs.replace(revision, sender="x"), b"", BEGIN), "forged"),
        ]
        if len(settings.federation.actives) > 1:
            turn = Turn(VERSION, Log(others).fingerprint, "p1", 1, False, 0, 0, 1.0, 1.0)
            wrong: list[tuple[dict[str, Any], str]] = [
                ({"sender": "x"}, "forged"),
                ({"sender": "p2"}, "forged"),
                ({"fingerprint": 5}, "configuration"),
                # Nobody has so many turns that the log does not say.
                ({"number": 2**52}, "implausible"),
            ]
            bad += [
                (arrived("turns", 0, msgspec.structs.replace(turn, **one), b"", BEGIN), reason)
                for one, reason in wrong
            ]
        return bad

    def asked(**changes: Any) -> Received:
        message = msgspec.structs.replace(announced, **changes)
        return arrived("rounds", 0, message, ROUND.encode(message), BEGIN)

    return [
        *bad,
        (asked(sender=f"p{stranger}"), "forged"),
        (asked(incarnations=others.incarnations[:2]), "malformed"),
        (asked(purpose=2), "malformed"),
        (asked(entities=[]), "malformed"),
        (asked(ranges=[]), "malformed"),
        (asked(ranges=[FeatureRange(0, 0)]), "malformed"),
        (asked(ranges=[FeatureRange(0, 2**50)]), "oversized"),
        (asked(bandwidth=float("nan")), "malformed"),
        (asked(bandwidth=0.0), "malformed"),
        (asked(purpose=1, ranges=[], entities=["a"]), "malformed"),
        (asked(purpose=3), "malformed"),
        (asked(purpose=4, ranges=[]), "malformed"),
        (asked(fingerprint=others.fingerprint + 1), "configuration"),
    ]


def subject_of(party: str, parties: int, features: int | None = None, **sections: dict[str, Any]) -> Subject:
    """features: that an entity tells. On a memory bus nobody can be a stranger, as where members have
    keys."""
    if features is not None:
        sections |= {"bus": {"url": "memory://"}, "privacy": {"features_per_entity": features}}
    settings = settings_of(party, parties, **sections)

    return Subject(
        make=lambda: make_worker(settings),
        traffic=active_traffic(settings) if party == "p0" else passive_traffic(settings),
        anybody=lambda extreme: anybody(settings, extreme),
        decode=decoders(settings),
        bad=bad_messages(settings),
        repeatable=["incarnations", "rounds", "sums", "revisions", "turns"],
        # A round that nobody answers is asked again after a time.
        paced=[f"rounds/p{number}" for number in range(1, PARTIES)],
    )


SUBJECTS = {
    "leaf-bounded": subject_of("p2", PARTIES, features=16),
    "leaf-paper": subject_of("p3", PARTIES, aggregation={"mask": "paper"}),
    "inner-none": subject_of("p1", PARTIES, aggregation={"mask": "none", "circle_bits": 64}),
    "active-newton": subject_of("p0", PARTIES, learning={"sweeps": 2}),
    "one-of-two-active": subject_of("p0", 2, federation={"active": ["p0", "p1"]}, learning={"solver": "sgd"}),
    "active-and-not-first": subject_of(
        "p0", 3, federation={"active": ["p1", "p0"]}, learning={"solver": "sgd"}
    ),
    "alone-newton": subject_of("p0", 1, learning={"sweeps": 1, "visits": 1, "cache_bytes": 100}),
}


@st.composite
def quiet_traffic(draw: st.DrawFn, settings: FdsklSettings) -> Traffic:
    """Nothing that leaves a round under way: of a passive party without parties below only rounds that it can
    answer at once."""
    others = Others(settings, 0)
    now, batches, rounds = BEGIN, [], 0
    for place in range(draw(st.integers(1, 5))):
        batch = []
        if not place:
            # An active party asks nobody that it has not heard of.
            batch += [
                others.incarnation(party, now)
                for party in range(others.parties)
                if others.own not in (0, party)
            ]
            features = [(draw(NUMBERS), draw(NUMBERS)) for _ in ENTITIES]
            batch += [
                arrived("samples", 0, Sample(entity, "s", own, None), b"", now, entity)
                for entity, own in zip(ENTITIES, features, strict=True)
            ]
        for _ in range(draw(st.integers(0, 8))):
            what = draw(st.sampled_from(["sample", "label" if others.own == 0 else "round"]))
            entity = draw(st.sampled_from(ENTITIES))
            if what == "sample":
                columns = (draw(NUMBERS), draw(NUMBERS))
                batch.append(arrived("samples", 0, Sample(entity, "s", columns, None), b"", now, entity))
            elif what == "label":
                batch.append(
                    arrived(
                        "labels", 0, Label(entity, entity, float(draw(st.integers(0, 1)))), b"", now, entity
                    )
                )
            else:
                entities = draw(st.lists(st.sampled_from(ENTITIES), min_size=1, max_size=3, unique=True))
                batch.append(others.round(rounds, others.incarnations, entities, 2, now)[1])
                rounds += 1
        batches.append((now, batch))
        if draw(st.booleans()):
            batches.append((now, []))
        now += draw(st.sampled_from([0.0, 0.2, 3.0]))
    return Traffic(batches, partitions=[0])


def quiet(party: str, parties: int, **sections: dict[str, Any]) -> Subject:
    """A subject with no round under way, and of one incarnation for ever."""
    settings = settings_of(
        party, parties, standardisation={"columns": False, "transform": "none"}, **sections
    )
    own = settings.federation.parties.index(party)
    return Subject(
        make=lambda: make_worker(settings, lambda: secret_bytes(own, 0)),
        traffic=quiet_traffic(settings),
        anybody=lambda extreme: anybody(settings, extreme),
        decode=decoders(settings),
        same_restored=alike,
    )


def alike(_channel: str, _key: bytes | None, one: bytes, other: bytes) -> bool:
    """Equal, but for the rounding of what was computed from features that are cached as float32, and from
    others."""
    if one == other:
        return True
    if len(one) == len(other) and len(one) % 8 == 0 and len(one) < CHUNK:
        return bool(np.allclose(np.frombuffer(one), np.frombuffer(other), rtol=1e-5, atol=1e-5))
    if len(one) == len(other) == CHUNK * 9:
        left, right = (np.frombuffer(content, "<f8", CHUNK) for content in (one, other))
        same = np.allclose(left, right, rtol=1e-5, atol=1e-5, equal_nan=True)
        return bool(same) and one[8 * CHUNK :] == other[8 * CHUNK :]
    try:
        texts = [msgspec.json.decode(content, type=Prediction) for content in (one, other)]
        fields = [(text.entity, text.model, text.parties, text.revision) for text in texts]
        return fields[0] == fields[1] and bool(
            np.isclose(texts[0].score, texts[1].score, rtol=1e-5, atol=1e-5)
        )
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    fields = [msgspec.msgpack.decode(content) for content in (one, other)]
    return len(fields[0]) == len(fields[1]) and all(
        bool(np.isclose(left, right, rtol=1e-5, atol=1e-5)) if isinstance(left, float) else left == right
        for left, right in zip(*fields, strict=True)
    )


QUIET = {
    "leaf": quiet("p2", PARTIES),
    "active-that-predicts-nought": quiet(
        "p0", 3, learning={"block_instances": 1000, "window": 1000}, alignment={"limit": 2000}
    ),
    "alone-newton": quiet("p0", 1, learning={"sweeps": 1, "visits": 1}),
    "alone-sgd": quiet("p0", 1, learning={"solver": "sgd"}),
}


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS.keys())
class TestWorker(RoleLaws):
    """All laws but two: rounds under way are not remembered, and each life has another incarnation.

    What stands in for the two is in test_closed_loop, and below, for whoever has no round under way.
    """

    test_it_goes_on_after_restoring = test_its_partitions_move = None  # type: ignore[assignment]


@pytest.mark.parametrize("subject", QUIET.values(), ids=QUIET.keys())
class TestWithNoRoundUnderWay:
    """Where the incarnation stays and no round is under way, a role that was restored goes on exactly as one
    that was not."""

    test_it_goes_on_after_restoring = RoleLaws.test_it_goes_on_after_restoring
    test_its_partitions_move = RoleLaws.test_its_partitions_move
