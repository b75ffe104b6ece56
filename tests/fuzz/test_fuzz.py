"""A short run of ``make fuzz``, and that it is able to find something."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest
from fuzz import targets as targets_module
from fuzz.campaign import run
from fuzz.federations import FEDERATIONS, Member, corpus
from fuzz.mutations import Message, Mutator
from msgspec import structs

from streamfl import wire
from streamfl.pofmkl.messages import KERNEL_PARAMETERS, MARKER_KEY, SHARD_VERSION, KernelParameters
from streamfl.pofmkl.server import PofmklServer
from streamfl.role import PeerError, Rejection, StateChange

MESSAGES = 50_000


def test_malformed_messages_are_refused_and_change_nothing() -> None:
    """Protects every process of a federation from whoever can write to its topics: nothing raises, hangs, grows or stays."""
    report = run(MESSAGES, seed=6)
    assert report.defects == []
    assert report.messages >= MESSAGES
    # Wrong enough to be refused, right enough to get past the first byte: of every target some messages are taken.
    refused = Counter({name: sum(n for (target, _), n in report.refused.items() if target == name) for name in report.taken})
    assert all(0.5 < refused[name] / count < 1 for name, count in report.taken.items()), refused
    reasons = {reason for _, reason in report.refused}
    assert reasons >= {"malformed", "oversized", "version", "forged", "kernel", "shape", "not_finite", "too_large", "superseded"}
    assert report.growth() < 50


@pytest.mark.parametrize("federation", FEDERATIONS)
def test_the_corpus_is_of_this_release(federation: str) -> None:
    """Protects the run from an outdated corpus, of which everything would be refused at the first look: record it anew."""
    client, server = Member.of(federation, "pofmkl-client"), Member.of(federation, "pofmkl-server")
    for message in corpus(federation, "samples", "labels", "model"):
        assert not [reply for reply in client.role.receive([client.decode(message)], 1e9) if hasattr(reply, "error")]
    for message in corpus(federation, "updates"):
        for reply in server.role.receive([server.decode(message)], 1e9):
            # Only those of a model that this server does not have yet.
            assert "names version" in reply.error.text  # type: ignore[union-attr]


def test_the_same_seed_makes_the_same_messages() -> None:
    """Protects whoever has to bring a defect back: seed, target and block are enough."""
    messages = corpus("default-async", "updates", "model", "samples")
    first, second, other = (Mutator(Random(seed), messages) for seed in (1, 1, 2))
    made = [[mutator.message() for _ in range(500)] for mutator in (first, second, other)]
    assert made[0] == made[1]
    assert made[0] != made[2]
    assert len(set(made[0])) > 400


def _takes_any_number(content: bytes, dtype: Any, shape: tuple[int, ...], name: str) -> Any:
    del name
    return np.frombuffer(content, dtype).reshape(shape)


def _remembers_before_it_checks(self: PofmklServer, shard: Any, received: Any) -> None:
    shard.round.dimension = received.message.dimension
    shard.round_changed = True
    if received.record.key != received.message.client.encode():
        raise PeerError("forged", "too late")


def _trusts_the_sender(self: PofmklServer, shard: Any, received: Any) -> None:
    return


MISTAKES: dict[str, tuple[Any, str, Any, str]] = {
    "arrays are not checked": (targets_module, "decode_array", _takes_any_number, "decode arrays"),
    "a server remembers before it checks": (PofmklServer, "_check", _remembers_before_it_checks, "server default-async"),
    "a server trusts its clients": (PofmklServer, "_check", _trusts_the_sender, "server paper"),
    "what a decoder raises gets out": (wire.Codec, "decode", lambda self, value: self._decoder.decode(value), "decode"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the run from finding nothing because it looks at nothing."""
    owner, name, wrong, only = MISTAKES[mistake]
    monkeypatch.setattr(owner, name, wrong)
    assert run(4_000, seed=1, only=only).defects


def test_a_role_that_keeps_a_refused_message_is_found() -> None:
    """Protects the comparison of all that a role holds: a change that is in no changelog counts too."""
    member = Member.of("default-async", "pofmkl-client")
    before = targets_module.fingerprint(member.role)
    assert targets_module.fingerprint(member.role) == before
    member.role._recent.append((0.0, 1.0))  # type: ignore[attr-defined]
    changed = targets_module.fingerprint(member.role)
    assert changed != before
    member.role.receive([member.decode(corpus("default-async", "samples")[0])], 1e9)
    assert targets_module.fingerprint(member.role) not in (before, changed)


def test_wrong_messages_differ_from_the_real_ones() -> None:
    """Protects the figure: a message that was not made wrong is not to be counted as malformed."""
    real = corpus("paper-lockstep", "updates")
    mutator = Mutator(Random(3), real)
    made = [mutator.message() for _ in range(2_000)]
    unchanged = sum(message in real for message in made)
    assert unchanged == 0
    assert isinstance(made[0], Message)


@pytest.mark.parametrize("number", [1.1e18, -3e38, float("inf")])
def test_a_model_whose_squares_overflow_is_refused(number: float) -> None:
    """Protects predictions: parameters that are finite, but whose products are not, would make them infinite."""
    member = Member.of("default-async", "pofmkl-client")
    record = KernelParameters(wire.VERSION, 0, wire.encode_array(np.array([0.5, 1.0, number, 0.0], np.float32)))
    (reply,) = member.role.receive([member.decode(Message("model", b"kernel/0", KERNEL_PARAMETERS.encode(record)))], 1.0)
    assert isinstance(reply, Rejection)
    assert reply.error.reason == "not_finite"


def test_a_model_of_a_version_below_zero_is_refused() -> None:
    """Protects a client's updates: those that name such a version would all be refused."""
    member = Member.of("default-async", "pofmkl-client")
    marker = next(message for message in corpus("default-async", "model") if message.key == MARKER_KEY)
    wrong = structs.replace(SHARD_VERSION.decode(marker.value), model_version=-1)
    received = member.decode(Message("model", MARKER_KEY, SHARD_VERSION.encode(wrong), marker.partition))
    (reply,) = member.role.receive([received], 1.0)
    assert isinstance(reply, Rejection)
    assert reply.error.reason == "malformed"


@pytest.mark.parametrize("key", [b"client/press-1", b"client/\xff", b"waiting/\x00\x00\x00\x00\x00\x00\x00\x01press-1"])
def test_a_damaged_state_of_the_client_is_refused(key: bytes) -> None:
    """Protects the operator from a traceback: a changelog of another layout has to be named, with what to do."""
    role = Member.of("default-async", "pofmkl-client").role
    with pytest.raises(PeerError):
        role.restore(StateChange("state", 0, key, b"\x94\x01\xa1x\xc0\xc0"))


@pytest.mark.parametrize("key", [b"round", b"client/press-1", b"client/\xff", b"pending/\xff", b"pending/a", b"step/slot/0/1"])
def test_a_damaged_state_of_the_server_is_refused(key: bytes) -> None:
    """Protects the operator from a traceback: a changelog of another layout has to be named, with what to do."""
    role = Member.of("default-async", "pofmkl-server").role
    with pytest.raises(PeerError):
        role.restore(StateChange("state", 0, key, b"\x94\x01\xa1x\xc0\xc0"))
