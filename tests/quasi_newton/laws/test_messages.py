"""Messages that come twice, in parts, damaged, too early or from a stranger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from quasi_newton.federations import Secrets
from quasi_newton.laws.closed_loop import ClosedLoop, Place, refused
from quasi_newton.laws.test_closed_loop import ROWS, assert_equals_direct, federation, outcome, trained

from streamfl.contract.role import BadRecord, Record
from streamfl.quasi_newton.messages import (
    Begin,
    Blinded,
    Joined,
    Message,
    Opened,
    StepDecision,
    content_of,
    place_of,
)
from streamfl.quasi_newton.training.party import PartyTask
from streamfl.quasi_newton.training.training_progress import TRAINED

SHORT: dict[str, Any] = {"learning": {"epochs": 1}}


def variants(message: Message, bits: int) -> Iterator[tuple[str, Message]]:
    """What a stranger, or a peer that is wrong, could say in place of a message: with the reason that it is
    refused for."""
    change = msgspec.structs.replace
    unit = bits // 4
    yield "configuration", change(message, fingerprint=message.fingerprint + 1)
    yield "malformed", change(message, kind="nonsense")
    yield "implausible", change(message, run=message.run + 7)
    if message.kind in ("opened", "step", "gradient", "sums", "outputs", "dots", "residuals"):
        yield "implausible", change(message, round=message.round + 1000)
        yield "alignment", change(message, alignment=bytes(32))
    if message.kind in ("gradient", "sums"):
        yield "forged", change(message, sender="somebody")
        yield "shape", change(message, content=message.content[:-1])
        yield "shape", change(message, content=message.content + message.content[:unit])
        for reason, number in (("range", 0), ("range", 1), ("range", 2 ** (8 * unit) - 1)):
            yield (
                f"ciphertext_{reason}",
                change(message, content=number.to_bytes(unit, "big") + message.content[unit:]),
            )
    if message.kind in ("begin", "joined", "opened", "step"):
        yield "malformed", change(message, content=b"\xc1")
    if message.kind == "begin":
        key = msgspec.msgpack.decode(message.content, type=Begin).key
        yield "unpinned_key", change(message, content=content_of(Begin(key[:-1] + bytes([key[-1] ^ 4]))))
        yield "weak_key", change(message, content=content_of(Begin(b"")))
    if message.kind == "step":
        step = msgspec.msgpack.decode(message.content, type=StepDecision)
        # Of a training without a model, and with weights that are no numbers: the first ended a party, the
        # second its next start.
        yield "implausible", change(message, content=content_of(change(step, over=True, epoch_ends=False)))
        if step.coefficients:
            huge = np.full(len(step.coefficients) // 8, 1e300).tobytes()
            yield "out_of_bounds", change(message, content=content_of(change(step, coefficients=huge)))
    if message.kind == "joined":
        yield "implausible", change(message, content=content_of(Joined(0, 3)))
        yield "implausible", change(message, content=content_of(Joined(2**40, 3)))
    if message.kind == "opened":
        residues = msgspec.msgpack.decode(message.content, type=Opened).residues
        yield "shape", change(message, content=content_of(Opened(residues[1:])))
    if message.kind == "step":
        step = msgspec.msgpack.decode(message.content, type=StepDecision)
        yield (
            "shape",
            change(message, content=content_of(change(step, coefficients=step.coefficients + bytes(16)))),
        )
        if step.coefficients:
            nan = b"\xff" * 8 + step.coefficients[8:]
            yield "not_finite", change(message, content=content_of(change(step, coefficients=nan)))


def resealed(member: Place, message: Message, unit: int) -> Iterator[tuple[str, Message]]:
    """What a peer with the link's secret could say."""
    task = member.role.task(0)
    assert isinstance(task, PartyTask)
    other = message.sender
    link = task.given.links[other]
    topic = task.settings.linked(other, "outputs" if task.settings.is_guest else "residuals")

    def sealed(content: bytes) -> Message:
        return msgspec.structs.replace(message, content=link.seal(content, topic, place_of(message)))

    content = link.open(message.content, topic, place_of(message))
    yield (
        "envelope",
        msgspec.structs.replace(message, content=message.content[:-1] + bytes([message.content[-1] ^ 1])),
    )
    yield "envelope", msgspec.structs.replace(message, content=b"")
    if message.kind in ("outputs", "residuals", "dots"):
        yield "shape", sealed(content + content[:unit])
        yield "ciphertext_range", sealed(bytes(unit) + content[unit:])
        yield "ciphertext_range", sealed((1).to_bytes(unit, "big") + content[unit:])
        modulus = int.from_bytes(task.progress.modulus, "big")
        yield "ciphertext_factor", sealed(modulus.to_bytes(unit, "big") + content[unit:])
        yield "ciphertext_bare", sealed((1 + 5 * modulus).to_bytes(unit, "big") + content[unit:])
    elif message.kind == "blinded":
        points = msgspec.msgpack.decode(content, type=Blinded).points
        yield "malformed", sealed(b"\xc1")
        yield "shape", sealed(content_of(Blinded(points + b"1")))
        yield "repeated", sealed(content_of(Blinded(points[:32] + points)))
        yield "malformed", sealed(content_of(Blinded(b"\xff" * 32 + points[32:])))
    else:
        yield "malformed", sealed(b"\xc1")


def refusals(member: Place, record: Record, now: float) -> set[str]:
    """Give a member all variants of a record before the record."""
    message: Message = member.inputs[record.topic][1](record)
    wrong = list(variants(message, 512))
    if record.topic.endswith((".outputs", ".residuals")):
        # The seal may be looked at first.
        sealed = ("implausible", "alignment")
        wrong = [(f"{reason}|envelope" if reason in sealed else reason, one) for reason, one in wrong]
        wrong += resealed(member, message, 128)
    return set(refused(member, record, wrong, now))


def test_what_is_wrong_is_refused_and_changes_nothing(secrets: Secrets) -> None:
    """Before each message that a member gets it gets all wrong ones: each is refused for its reason, and the
    result is the same."""
    usual = trained(1, secrets, **SHORT)
    loop = federation(1, secrets, **SHORT)
    loop.write_table(ROWS, 3, 1, missing=7)
    reasons: set[str] = set()
    seen: set[tuple[str, str]] = set()
    for _ in range(5_000):
        moved = False
        for name, member in loop.members.items():
            if member.unread and member.unread[0][0].startswith("f."):
                topic, record = member.unread[0]
                kind = name, member.inputs[topic][1](record).kind
                # Kinds come again and again; the first two rounds and the last show all there is.
                if kind not in seen:
                    seen.add(kind)
                    reasons |= refusals(member, record, loop.now)
                moved |= loop.step(name, 1)
            else:
                moved |= loop.step(name)
        if not moved:
            if loop.party("g").progress.phase == TRAINED:
                break
            loop.now += 5.0
    assert outcome(loop) == outcome(usual)
    assert loop.rejections() == []
    # All those of encryption, of seals and of sets are among them.
    assert len(reasons) >= 13, reasons


def test_what_is_no_message_is_refused_before_a_role_sees_it() -> None:
    """Bytes of anybody give BadRecord and nothing else."""
    loop: ClosedLoop = federation(1)
    for member in loop.members.values():
        for topic, (_, decode) in member.inputs.items():
            for value in (None, b"", b"\xc1", b"\x98\x01", b"\x98" + bytes([1]) * 8, b"\xff" * 100):
                with pytest.raises(BadRecord):
                    decode(Record(topic, 0, 0, b"k", value, (), 0.0))


def test_a_host_hears_the_guest_before_the_coordinator() -> None:
    """The guest's points may come before the run has begun at the host: they are kept, over a restart too,
    and answered then."""
    loop = federation(1, **SHORT)
    loop.write_table(ROWS, 3, 1, missing=7)
    host = loop.members["h1"]
    loop.until(lambda: any(topic == "f.h1.decisions" for topic, _ in host.unread))
    loop.step("g")
    assert [topic for topic, _ in host.unread] == ["f.h1.decisions", "f.h1.residuals"]
    host.unread.reverse()
    loop.step("h1", 1)
    loop.restart("h1")
    loop.settle()
    assert_equals_direct(loop)
