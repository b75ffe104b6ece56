"""The law of bounded staleness: which embeddings a gradient was computed from is recounted from the messages
alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vafl.makers import Alignment, make_coordinator

from streamfl.contract.role import Received, Record, Send
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.records.labels import Label
from streamfl.roles.rhythm import TIMES, UNKNOWN
from streamfl.vafl.messages import REPLY, Embedding

PARTIES = ("a", "b", "c")
ENTITIES = ("e", "f", "g", "h")
REPLY_SECONDS = 10.0
EXPIRY = 1e6


class Shown(NamedTuple):
    """An embedding as it was sent."""

    epoch: int
    version: int
    value: float


@dataclass
class Member:
    """A party as the others see it. ``known``: entities without a gradient. ``requested``: those it is asked
    for, oldest first."""

    epoch: int = 1
    version: int = 0
    sequence: int = 0
    known: set[str] = field(default_factory=set)
    requested: list[str] = field(default_factory=list)


class Conversation:
    """A coordinator whose sum of embeddings is told by every gradient, 2 (sum - label), and a record of all
    that was said."""

    def __init__(self, alignment: Alignment) -> None:
        self.bound = alignment.max_staleness
        self.role = make_coordinator(parties=PARTIES, alignment=alignment)
        self.role.open(0)
        self.now = 0.0
        self.members = {name: Member() for name in PARTIES}
        self.draws = np.random.default_rng(8)
        self.shown: dict[tuple[str, str], list[Shown]] = {}
        self.means = dict.fromkeys(PARTIES, 0.0)
        self.counts = dict.fromkeys(PARTIES, 0)
        self.labels: dict[str, float] = {}
        self.ages: list[int] = []
        for name in PARTIES:
            # Of one embedding the mean could not be told from it.
            self.shows(name, "unlabelled")

    def shows(self, name: str, entity: str) -> None:
        member = self.members[name]
        member.sequence += 1
        member.known.add(entity)
        one = Shown(member.epoch, member.version, float(self.draws.normal()))
        self.shown.setdefault((name, entity), []).append(one)
        self.counts[name] += 1
        self.means[name] += (one.value - self.means[name]) / self.counts[name]
        content = encode_array(np.array([one.value]))
        message = Embedding(VERSION, 0, entity, member.epoch, member.sequence, member.version, content)
        self._said(f"embeddings/{name}", message, entity)

    def labelled(self, entity: str) -> None:
        if entity not in self.labels:
            self.labels[entity] = float(self.draws.normal())
            self._said("labels", Label(entity, entity, self.labels[entity]), entity)

    def answers(self, name: str) -> None:
        member = self.members[name]
        if member.requested and (entity := member.requested.pop(0)) in member.known:
            self.shows(name, entity)

    def steps(self, name: str) -> None:
        self.members[name].version += 1

    def loses_its_state(self, name: str) -> None:
        self.members[name] = Member(epoch=self.members[name].epoch + 1)

    def waits(self, seconds: float) -> None:
        self.now += seconds
        self._take(self.role.receive([], self.now))

    def _said(self, channel: str, message: Any, entity: str) -> None:
        self._take(
            self.role.receive(
                [Received(channel, message, Record(channel, 0, 0, entity.encode(), b""))], self.now
            )
        )

    def _take(self, said: Any) -> None:
        # Of one computation everybody gets the same gradient.
        computed: dict[tuple[str, bytes], None] = {}
        for one in said:
            assert isinstance(one, Send)
            if not one.channel.startswith("gradients/"):
                continue
            reply, member = REPLY.decode(one.value), self.members[one.channel.partition("/")[2]]
            if reply.gradient:
                member.known.discard(reply.entity)
                computed[reply.entity, reply.gradient] = None
            else:
                member.requested.append(reply.entity)
        for entity, gradient in computed:
            self._recount(entity, float(np.frombuffer(gradient)[0]))

    def _recount(self, entity: str, gradient: float) -> None:
        """Find the embeddings, or means, whose sum the gradient is of: whatever was ever shown may be among
        them."""
        total = gradient / 2 + self.labels[entity]
        offered = [[None, *dict.fromkeys(self.shown.get((name, entity), []))] for name in PARTIES]

        def apart(rows: tuple[Shown | None, ...]) -> float:
            values = [
                self.means[name] if one is None else one.value
                for name, one in zip(PARTIES, rows, strict=True)
            ]
            return abs(sum(values) - total)

        (rows,) = [rows for rows in product(*offered) if apart(rows) < 1e-9]
        for name, one in zip(PARTIES, rows, strict=True):
            if one is None:
                continue
            assert one == self.shown[name, entity][-1], "an embedding was used that a newer one had replaced"
            member = self.known(name)
            if self.bound is not None:
                assert one.epoch == member.epoch, "an embedding of an earlier life of the party was used"
                assert member.version - one.version <= self.bound, (
                    "an embedding was used that is older than D"
                )
            self.ages.append(member.version - (one.version if one.epoch == member.epoch else 0))

    def known(self, name: str) -> Shown:
        """The party's embedding that was sent last, of whichever entity: what tells the coordinator of its
        steps."""
        return self.latest[name]

    @property
    def latest(self) -> dict[str, Shown]:
        found: dict[str, Shown] = {}
        for (name, _), all_of_it in self.shown.items():
            for one in all_of_it:
                found[name] = max(one, found.get(name, one))
        return found


def figures(conversation: Conversation) -> dict[str, float]:
    return {one.name: one.value for one in conversation.role.measure() if not one.labels}


# Few entities, that all be shown by all and again.
SHOWS = st.tuples(st.just("shows"), st.sampled_from(PARTIES), st.sampled_from(ENTITIES[:2]))
ACTIONS = st.one_of(
    SHOWS,
    SHOWS,
    SHOWS,
    st.tuples(st.just("labelled"), st.sampled_from(ENTITIES[:2])),
    st.tuples(st.just("answers"), st.sampled_from(PARTIES)),
    st.tuples(st.just("steps"), st.sampled_from(PARTIES)),
    st.tuples(st.just("loses_its_state"), st.sampled_from(PARTIES)),
    st.tuples(st.just("waits"), st.sampled_from([0.0, 4.0, REPLY_SECONDS])),
)


@pytest.mark.parametrize("bound", [None, 0, 1, 3])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_no_gradient_is_computed_from_what_is_older_than_the_bound(
    bound: int | None, data: st.DataObject
) -> None:
    """Protects the paper's D, and the figure that shows tau: of whichever party, answered or not, an
    embedding that a gradient was computed from is its latest and at most D steps old, and the figures of
    staleness are of just these.
    Nobody is waited for without end.
    """
    alignment = Alignment(
        quorum=1,
        learning_quorum=data.draw(st.sampled_from([None, 1, 2])),
        wait_for=data.draw(st.sampled_from([1, 1, 2])),
        max_staleness=bound,
        requests=data.draw(st.sampled_from([0, 1, 4])),
        reply_seconds=REPLY_SECONDS,
        expiry=EXPIRY,
        keep=data.draw(st.booleans()),
    )
    conversation = Conversation(alignment)
    for name, *arguments in data.draw(st.lists(ACTIONS, min_size=10, max_size=60)):
        getattr(conversation, name)(*arguments)
    ages, found = conversation.ages, figures(conversation)
    assert found["staleness_largest"] == max(ages, default=0)
    assert found["staleness_steps"] / max(found["aged_embeddings"], 1) == pytest.approx(
        np.mean(ages) if ages else 0.0
    )
    # Nobody says anything more: each of three parties may be asked and given up once.
    for _ in range(len(PARTIES) + 1):
        conversation.waits(REPLY_SECONDS)
    wake_at = conversation.role.wake_at
    # No message waits for a time; that no label has come is unusual after days.
    assert wake_at is None or wake_at >= TIMES * UNKNOWN


def test_a_bound_is_kept_for_all_parties_of_a_row() -> None:
    """Protects the law above from saying nothing: in a pass over the same entities, where who is answered is
    new and the others are old, a bound of 2 changes what is used, and without one the age of the others
    shows.
    """
    found = {}
    for bound in (None, 2):
        conversation = Conversation(Alignment(quorum=1, learning_quorum=1, max_staleness=bound, keep=True))
        for _ in range(2):
            for entity in ENTITIES:
                conversation.labelled(entity)
                for name in PARTIES:
                    conversation.shows(name, entity)
                    conversation.steps(name)
        found[bound] = figures(conversation)
    # The others' embeddings of the pass before: four steps, one an entity, back, three for who shows its own
    # first.
    assert (found[None]["staleness_largest"], found[2]["staleness_largest"]) == (3, 0)
    assert found[None]["outdated_embeddings"] == 0
    # Of four entities two others in the first row, one in the second: all of the pass before.
    assert found[2]["outdated_embeddings"] == 4 * (2 + 1)
