"""A short run of ``make fuzz``, and that it is able to find something."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest
from fuzz import pofmkl, vafl
from fuzz import targets as targets_module
from fuzz.campaign import run
from fuzz.federations import NOW, Member, corpus
from fuzz.mutations import Message, Mutator
from fuzz.systems import SYSTEMS
from msgspec import structs

from streamfl import wire
from streamfl.pofmkl.messages import KERNEL_PARAMETERS, MARKER_KEY, SHARD_VERSION, KernelParameters
from streamfl.pofmkl.server import PofmklServer
from streamfl.role import PeerError, Rejection, StateChange
from streamfl.vafl import party as party_module
from streamfl.vafl.config import COORDINATOR, PARTY
from streamfl.vafl.coordinator import VaflCoordinator
from streamfl.vafl.party import VaflParty

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
    assert reasons >= {"malformed", "oversized", "version", "forged", "kernel", "shape", "not_finite", "too_large", "implausible"}
    assert report.growth() < 50


def recorded_for(member: Member, federation: str) -> list[Any]:
    """What a member answers to the real messages on its inputs and tables."""
    channels = (*member.channels.inputs, *member.channels.tables)
    return [reply for one in corpus(federation, *channels) for reply in member.role.receive([member.decode(one)], NOW)]


@pytest.mark.parametrize("federation", [name for system in SYSTEMS for name in system.federations])
def test_the_corpus_is_of_this_release(federation: str) -> None:
    """Protects the run from an outdated corpus, of which everything would be refused at the first look: record it anew."""
    of_vafl = federation in vafl.FEDERATIONS
    members = (
        [vafl.member(federation, name) for name in (vafl.WRONG[0], COORDINATOR)]
        if of_vafl
        else [pofmkl.member(federation, kind) for kind in ("pofmkl-client", "pofmkl-server")]
    )
    for member in members:
        refused = [reply for reply in recorded_for(member, federation) if isinstance(reply, Rejection)]
        # Only those of a model that this server does not have yet.
        assert all("names version" in reply.error.text for reply in refused)


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


def _remembers_before_it_checks(self: PofmklServer, shard: Any, received: Any, now: float) -> None:
    del now
    shard.round.dimension = received.message.dimension
    shard.round_changed = True
    if received.record.key != received.message.client.encode():
        raise PeerError("forged", "too late")


def _trusts_the_sender(self: Any, *received: Any) -> None:
    return


def _forgets_before_it_checks(self: VaflParty, received: Any, reply: Any, bounded: bool) -> None:
    for task in self._tasks.values():
        task.shown.pop(reply.entity, None)
    raise PeerError("forged", "too late")


def _takes_any_values(self: VaflCoordinator, content: bytes) -> Any:
    return np.frombuffer(content, self.dtype)[: self.embedding_size]


def _shows_what_it_computed(array: Any, dtype: Any) -> Any:
    return np.asarray(array, dtype=dtype)


MISTAKES: dict[str, tuple[Any, str, Any, str]] = {
    "arrays are not checked": (targets_module, "decode_array", _takes_any_number, "decode arrays"),
    "a server remembers before it checks": (PofmklServer, "_check", _remembers_before_it_checks, "server default-async"),
    "a server trusts its clients": (PofmklServer, "_check", _trusts_the_sender, "server paper"),
    "a party trusts the coordinator": (VaflParty, "_check", _trusts_the_sender, "vafl-party"),
    "a party forgets before it checks": (VaflParty, "_check", _forgets_before_it_checks, "vafl-party vafl-sum"),
    "a party shows what nobody takes": (party_module, "within_bounds", _shows_what_it_computed, "vafl-party"),
    "a coordinator trusts its parties": (VaflCoordinator, "_values", _takes_any_values, "vafl-coordinator"),
    "a coordinator's state is not checked": (VaflCoordinator, "restore", VaflCoordinator._restore, "restore vafl"),
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
    member = pofmkl.member("default-async", "pofmkl-client")
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


@pytest.mark.parametrize(("number", "reason"), [(1.1e18, "implausible"), (-3e38, "implausible"), (float("inf"), "not_finite")])
def test_a_model_whose_squares_overflow_is_refused(number: float, reason: str) -> None:
    """Protects predictions: parameters that are finite, but whose products are not, would make them infinite."""
    member = pofmkl.member("default-async", "pofmkl-client")
    record = KernelParameters(wire.VERSION, 0, wire.encode_array(np.array([0.5, 1.0, number, 0.0], np.float32)))
    (reply,) = member.role.receive([member.decode(Message("model", b"kernel/0", KERNEL_PARAMETERS.encode(record)))], 1.0)
    assert isinstance(reply, Rejection)
    assert reply.error.reason == reason


def test_a_model_of_a_version_below_zero_is_refused() -> None:
    """Protects a client's updates: those that name such a version would all be refused."""
    member = pofmkl.member("default-async", "pofmkl-client")
    marker = next(message for message in corpus("default-async", "model") if message.key == MARKER_KEY)
    wrong = structs.replace(SHARD_VERSION.decode(marker.value), model_version=-1)
    with pytest.raises(PeerError, match="malformed"):
        member.decode(Message("model", MARKER_KEY, SHARD_VERSION.encode(wrong), marker.partition))


@pytest.mark.parametrize("key", [b"client/press-1", b"client/\xff", b"waiting/\x00\x00\x00\x00\x00\x00\x00\x01press-1"])
def test_a_damaged_state_of_the_client_is_refused(key: bytes) -> None:
    """Protects the operator from a traceback: a changelog of another layout has to be named, with what to do."""
    role = pofmkl.member("default-async", "pofmkl-client").role
    with pytest.raises(PeerError):
        role.restore(StateChange("state", 0, key, b"\x94\x01\xa1x\xc0\xc0"))


@pytest.mark.parametrize("key", [b"round", b"client/press-1", b"client/\xff", b"pending/\xff", b"pending/a", b"step/slot/0/1"])
def test_a_damaged_state_of_the_server_is_refused(key: bytes) -> None:
    """Protects the operator from a traceback: a changelog of another layout has to be named, with what to do."""
    role = pofmkl.member("default-async", "pofmkl-server").role
    with pytest.raises(PeerError):
        role.restore(StateChange("state", 0, key, b"\x94\x01\xa1x\xc0\xc0"))


@pytest.mark.parametrize(
    "key", [b"task", b"party/0", b"party/-1", b"party/4", b"party/x", b"entity/e-1", b"entity/\xff", b"array/mean/0", b"\xff"]
)
def test_a_damaged_state_of_the_coordinator_is_refused(key: bytes) -> None:
    """Protects the operator from a traceback: a changelog of another layout has to be named, with what to do."""
    role = vafl.member("vafl-sum-logistic", COORDINATOR).role
    with pytest.raises(PeerError):
        role.restore(StateChange("state", 0, key, b"\x94\x01\xa1x\xc0\xc0"))


@pytest.mark.parametrize(
    "key",
    [b"task", b"entity/e-1", b"entity/\xff", b"answered/0", b"answered/x", b"waiting/0", b"spent/e-1", b"array/mean/0", b"\xff"],
)
def test_a_damaged_state_of_a_party_is_refused(key: bytes) -> None:
    """Protects the operator from a traceback: a changelog of another layout has to be named, with what to do."""
    role = vafl.member("vafl-private", vafl.WRONG[0]).role
    with pytest.raises(PeerError):
        role.restore(StateChange("state", 0, key, b"\x94\x01\xa1x\xc0\xc0"))


def test_answers_that_were_remembered_with_a_gap_are_refused() -> None:
    """Protects a party from failing at a later step: what is missing among the gradients that wait for it is said at the start."""
    (first, *_) = [one for one in corpus("vafl-sum-logistic", PARTY) if one.key == b"answered/0"]
    role = vafl.member("vafl-sum-logistic", vafl.WRONG[0]).role
    with pytest.raises(PeerError, match="after 0 others"):
        role.restore(StateChange("state", 0, b"answered/1", first.value))
