"""The laws of a role on guest, host and coordinator: traffic is what they heard in a training, cut into
batches in any way."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from quasi_newton.federations import settings_of
from quasi_newton.laws.closed_loop import ClosedLoop
from quasi_newton.proof import made_up_secrets
from quasi_newton.proof.made_up_secrets import made_up_files

from streamfl.contract.role import Received, Record
from streamfl.encoding.wire import VERSION
from streamfl.quasi_newton.messages import Message, Ready, content_of
from streamfl.quasi_newton.roles import ROLES
from streamfl.testing.role_laws import (
    Extreme,
    Move,
    RoleLaws,
    Subject,
    Traffic,
    law_accepted_can_be_written,
    law_deterministic,
    law_moves,
)

SMALL: dict[str, Any] = {
    "learning": {"batch": 40, "min_batch": 40, "min_support": 2, "epochs": 2},
    "alignment": {"entities": 40},
}


def settings(name: str, hidden: bool) -> Any:
    """hidden: under a key of 512 bits."""
    if not hidden:
        return settings_of(name, 1, columns=1, **SMALL)
    encryption = {
        "precision": "paillier",
        "key_bits": made_up_secrets.KEY_BITS,
        "key_fingerprint": made_up_secrets.fingerprint(),
        **(
            {"key_file": made_up_secrets.key_path()}
            if name == "c"
            else {"secret_file": made_up_secrets.path(name), "link_secret_file": made_up_secrets.path("link")}
        ),
    }
    return settings_of(name, 1, columns=1, encryption=encryption, **SMALL)


@cache
def small_training(hidden: bool) -> ClosedLoop:
    """A small training from its beginning to its end, for all members."""
    with made_up_files():
        loop = ClosedLoop({one: settings(one, hidden) for one in ("g", "h1", "c")})
    loop.write_table(84, 1, 1, missing=2)
    loop.settle()
    assert loop.rejections() == []
    return loop


def heard(name: str, hidden: bool) -> list[tuple[float, list[Received]]]:
    """All that a member hears in a small training."""
    batches = small_training(hidden).members[name].heard
    assert len(batches) > 8
    return batches


@st.composite
def traffic(
    draw: st.DrawFn, heard: Callable[[], list[tuple[float, list[Received]]]], least: int = 1
) -> Traffic:
    """The first batches of what a member hears, ``least`` of them or more, some of them cut, or without one
    message, and ticks between them."""
    whole = heard()
    batches: list[tuple[float, list[Received]]] = []
    for now, batch in whole[: draw(st.integers(least, min(18, len(whole))))]:
        rest = list(batch)
        if 0 < len(rest) < 10 and draw(st.integers(0, 11)) == 0:
            del rest[draw(st.integers(0, len(rest) - 1))]
        at = draw(st.integers(0, len(rest)))
        parts = [part for part in (rest[:at], rest[at:]) if part] or [[]]
        batches += [(now, part) for part in ([*parts, []] if draw(st.integers(0, 3)) == 0 else parts)]
    return Traffic(batches, partitions=[0])


def message(name: str, hidden: bool, sender: str, kind: str) -> Message:
    """One that nothing led to."""
    fingerprint = heard_fingerprint(name, hidden)
    return Message(VERSION, fingerprint, sender, 0, 0, kind, b"", content_of(Ready(5, b"")))


@cache
def heard_fingerprint(name: str, hidden: bool) -> int:
    messages = [
        one.message for _, batch in heard(name, hidden) for one in batch if isinstance(one.message, Message)
    ]
    return int(messages[0].fingerprint)


PEERS = {"g": [("decisions", "c"), ("outputs/h1", "h1")], "h1": [("decisions", "c"), ("residuals", "g")]}
PEERS["c"] = [("uploads/g", "g"), ("uploads/h1", "h1")]


def bad(name: str, hidden: bool) -> list[tuple[Received, str]]:
    found = []
    for channel, sender in PEERS[name]:
        for wrong, reason in (
            (msgspec.structs.replace(message(name, hidden, sender, "step"), fingerprint=1), "configuration"),
            (message(name, hidden, sender, "nonsense"), "malformed"),
        ):
            record = Record(channel, 0, 0, None, msgspec.msgpack.encode(wrong))
            found.append((Received(channel, wrong, record), reason))
    return found


def users(name: str, extreme: Extreme) -> list[tuple[str, Record]]:
    """Records of users."""
    values = (
        {"samples": {"x0": extreme.number}, "labels": {"y": 1}}
        if name == "g"
        else {"samples": {"x0": extreme.number}}
    )
    return [
        (channel, Record(channel, 0, 0, extreme.name.encode(), json.dumps(value).encode()))
        for channel, value in values.items()
    ]


def anybody(name: str, hidden: bool, extreme: Extreme) -> list[tuple[str, Record]]:
    """Records of users, and of peers where something is said before any training."""
    if name != "c":
        return users(name, extreme)
    records = []
    for channel, sender in PEERS[name]:
        value = msgspec.msgpack.encode(message(name, hidden, sender, "ready"))
        records.append((channel, Record(channel, 0, 0, extreme.name.encode(), value)))
    return records


def subject(name: str, hidden: bool = False) -> Subject:
    own = settings(name, hidden)
    kind = ROLES[own.role.kind]
    inputs = kind.channels(own).inputs

    def make() -> Any:
        with made_up_files():
            return kind.build(own)

    return Subject(
        make=make,
        # Of hidden numbers there are few examples: each goes as far as the rounds.
        traffic=traffic(partial(heard, name, hidden), 9 if hidden else 1),
        anybody=partial(anybody, name, hidden),
        decode={channel: one.decode for channel, one in inputs.items()},
        bad=bad(name, hidden),
        repeatable=list(inputs),
    )


MEMBERS = {"guest": "g", "host": "h1", "coordinator": "c"}


@pytest.mark.parametrize("subject", [subject(name) for name in MEMBERS.values()], ids=MEMBERS.keys())
class TestQuasiNewtonRoles(RoleLaws):
    """Of each of the three roles, in plain sight: all laws, with many examples."""


@pytest.mark.parametrize(
    "subject", [subject(name, hidden=True) for name in MEMBERS.values()], ids=MEMBERS.keys()
)
class TestUnderPaillier:
    """What encryption could break: a ciphertext or a mask that is drawn anew is another message, or shows
    what it hides. Messages that are wrong or come twice are given under encryption elsewhere."""

    @pytest.mark.long
    @given(data=st.data())
    @examples(max_examples=2, deadline=None)
    def test_it_is_deterministic(self, subject: Subject, data: st.DataObject) -> None:
        """Protects encrypted trainings: the same work done again says the same ciphertexts."""
        law_deterministic(subject, data.draw(subject.traffic))

    @given(data=st.data())
    @examples(max_examples=3, deadline=None)
    def test_its_partition_moves(self, subject: Subject, data: st.DataObject) -> None:
        """Protects workers that come and go: another one says the same ciphertexts, also after a step that
        came to nothing."""
        traffic = data.draw(subject.traffic)
        move = st.builds(Move, st.just(0), st.sampled_from((0, 1)), st.booleans())
        law_moves(subject, traffic, [data.draw(st.lists(move, max_size=2)) for _ in traffic.batches])

    def test_what_it_accepts_can_be_written(self, subject: Subject) -> None:
        """Protects a role from one message after which it ends at every start."""
        law_accepted_can_be_written(subject)
