"""Messages about scores that are damaged, forged, too early, too late, or come again."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from quasi_newton.laws.closed_loop import Place, refused
from quasi_newton.laws.scoring import SCORING, predictions, said, scored, scoring_federation

from streamfl.quasi_newton import messages
from streamfl.quasi_newton.messages import Message, content_of, place_of, read_content
from streamfl.quasi_newton.scoring.messages import (
    NO_POINTS,
    ChosenPlaces,
    Points,
    ScoringAnswer,
    ScoringQuestion,
)

KINDS = {"question", "found", "chosen", "points"}
change = msgspec.structs.replace


def in_the_open(message: Message) -> Iterator[tuple[str, Message]]:
    """What somebody without the link's secret could say in a message's place, and why it is refused."""
    yield "configuration", change(message, fingerprint=message.fingerprint + 1)
    yield "malformed", change(message, kind="nonsense")
    yield "malformed", change(message, kind="outputs")
    yield "implausible", change(message, run=message.run + 7)
    yield "envelope", change(message, content=message.content[:-1] + bytes([message.content[-1] ^ 1]))
    yield "envelope", change(message, content=b"")
    yield "envelope", change(message, alignment=bytes(32))
    yield "forged", change(message, sender="somebody")
    # A question may be any number ahead: some may have been lost. It is not the sealed one then.
    yield (
        "envelope" if message.kind == "question" else "implausible",
        change(message, round=message.round + 1000),
    )


def by_the_peer(message: Message, content: bytes) -> Iterator[tuple[str, bytes, bytes]]:
    """What the peer itself could say: why it is refused, its content, and the digest beside it."""
    yield "malformed", b"\xc1", message.alignment
    yield "malformed", b"\x90", message.alignment
    if message.kind == "question":
        points = read_content(content, ScoringQuestion).points
        yield "shape", content_of(ScoringQuestion(points + b"1")), b""
        yield "shape", content_of(ScoringQuestion(bytes(32 * 1001))), b""
        yield "repeated", content_of(ScoringQuestion(points[:32] + points)), b""
        yield "malformed", content_of(ScoringQuestion(b"\xff" * 32 + points[32:])), b""
    if message.kind == "found":
        found = read_content(content, ScoringAnswer)
        yield "shape", content_of(ScoringAnswer(found.own + b"1", found.twice)), b""
        yield "shape", content_of(ScoringAnswer(found.own, found.twice[32:])), b""
        yield "shape", content_of(ScoringAnswer(bytes(32 * 1001), found.twice)), b""
        yield "repeated", content_of(ScoringAnswer(found.own[:32] + found.own, found.twice)), b""
        yield "repeated", content_of(ScoringAnswer(found.own, found.twice[:32] + found.twice[:-32])), b""
        yield "malformed", content_of(ScoringAnswer(b"\xff" * 32 + found.own[32:], found.twice)), b""
    if message.kind == "chosen":
        places = np.frombuffer(read_content(content, ChosenPlaces).places, "<u4")
        yield "shape", content_of(ChosenPlaces(places.tobytes() + b"1")), message.alignment
        yield "alignment", content_of(ChosenPlaces(places.tobytes())), bytes(32)
        yield "alignment", content_of(ChosenPlaces(places[1:].tobytes())), message.alignment
        yield (
            "alignment",
            content_of(ChosenPlaces(np.append(places, places[:1]).tobytes())),
            message.alignment,
        )
        yield (
            "alignment",
            content_of(ChosenPlaces(np.append(places[1:], np.array([10**6], "<u4")).tobytes())),
            message.alignment,
        )
    if message.kind == "points":
        points = np.frombuffer(read_content(content, Points).points, "<i4")
        yield "shape", content_of(Points(points.tobytes() + b"1")), message.alignment
        yield "shape", content_of(Points(points[1:].tobytes())), message.alignment
        yield "alignment", content_of(Points(points.tobytes())), bytes(32)
        for number in (64 * 64 + 1, -64 * 64 - 1, 2**31 - 1, NO_POINTS + 1):
            wrong = np.append(points[1:], np.array([number], "<i4"))
            yield "out_of_bounds", content_of(Points(wrong.tobytes())), message.alignment


def all_wrong(member: Place, topic: str, message: Message) -> Iterator[tuple[str, Message]]:
    """All wrong ones in a message's place, and why they are refused."""
    link = member.role.task(0).given.links[message.sender]
    yield from in_the_open(message)
    opened = link.open(message.content, topic, place_of(message))
    for reason, content, alignment in by_the_peer(message, opened):
        bare = change(message, alignment=alignment)
        yield reason, change(bare, content=link.seal(content, topic, place_of(bare)))
    # What was said in the other direction, or in a training, is no answer.
    linked = member.role.task(0).settings.linked
    for other in (linked(message.sender, name) for name in ("questions", "answers", "residuals", "outputs")):
        if other != topic:
            yield "envelope", change(message, content=link.seal(opened, other, place_of(message)))


def test_what_is_wrong_is_refused_and_changes_nothing() -> None:
    """Before each first message of a kind its reader gets all wrong ones; the predictions are the same."""
    usual, loop = scored(1), scoring_federation(1)
    reasons: set[str] = set()
    seen: set[str] = set()
    for _ in range(500):
        moved = False
        for name, member in loop.members.items():
            while member.unread and member.unread[0][0].endswith(SCORING):
                topic, record = member.unread[0]
                message = member.inputs[topic][1](record)
                if message.kind not in seen:
                    seen.add(message.kind)
                    reasons |= set(refused(member, record, all_wrong(member, topic, message), loop.now))
                moved |= loop.step(name, 1)
            moved |= loop.step(name)
        loop.now += 0.001 if moved else 5.0
        if len(predictions(loop)) == len(predictions(usual)):
            break
    assert seen == KINDS
    assert reasons == {
        "configuration", "malformed", "implausible", "envelope", "forged", "shape", "repeated", "alignment",
        "out_of_bounds",
    }  # fmt: skip
    assert predictions(loop) == predictions(usual)
    assert loop.rejections() == []


def test_what_comes_twice_changes_nothing() -> None:
    """Protects a host's columns and users' counts: what comes again is not answered again, and nothing is
    published twice."""
    usual, loop = scored(1), scoring_federation(1)
    loop.copies = 2
    loop.settle(1)
    assert predictions(loop) == predictions(usual)
    for name in loop.members:
        mine, others = (one.members[name].role.counts for one in (loop, usual))
        assert mine.answered_entities == others.answered_entities
        assert mine.questions == others.questions
    assert loop.members["h1"].role.counts.repeated_messages > 0


def test_long_messages_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message in parts of 300 bytes, those of a training and those about scores under numbers of their
    own."""
    monkeypatch.setattr(messages, "FRAGMENT_BYTES", 300)
    loop = scoring_federation(1)
    loop.settle(3)
    sent = [value for _, topic, value in loop.committed if topic.endswith(SCORING)]
    assert len(sent) > 50
    monkeypatch.undo()
    assert predictions(loop) == predictions(scored(1))


def test_an_old_session_is_over() -> None:
    """Protects from messages that lay about: all that was said under one session is of no effect in the next,
    and no error."""
    loop = scored(1)
    old = [(topic, value) for _, topic, value in loop.committed if topic.endswith(SCORING)]
    assert len(old) > 10
    before = len(loop.committed)
    for topic, value in old:
        loop.write(topic, None, value)
    for name in ("g", "h1"):
        loop.step(name)
    assert len(loop.committed) == before
    assert loop.rejections() == []


def test_each_session_has_points_of_its_own() -> None:
    """Protects entities that are not common: the same set is asked about again and again, and no blinded
    point is seen twice.

    Whoever could compare two sessions would see which entities come and go.
    """
    loop = scored(1)
    sets = [
        {points[at : at + 32] for at in range(0, len(points), 32)}
        for _, one, content in said(loop, loop.committed)
        for points in ([read_content(content, ScoringQuestion).points] if one.kind == "question" else [])
    ]
    assert len(sets) > 3
    assert sum(map(len, sets)) == len(set().union(*sets))
