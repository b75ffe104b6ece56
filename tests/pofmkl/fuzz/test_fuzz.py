"""Wrong messages and damaged state, given to clients and servers: what is refused, and mistakes that are
found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec import structs
from pofmkl.proof import fuzz
from wrong_messages import check_found, trusts_the_sender

from streamfl.contract.role import BadRecord, Rejection, StateChange
from streamfl.encoding import wire
from streamfl.pofmkl.messages import KERNEL_PARAMETERS, MARKER_KEY, SHARD_VERSION, UPDATE, KernelParameters
from streamfl.pofmkl.server.shard import Shard
from streamfl.testing.fuzz.campaign import run
from streamfl.testing.fuzz.mutations import FuzzedRecord

FEDERATION = fuzz.FEDERATIONS["default-async"]


def test_kernels_that_are_not_there_and_numbers_too_large_are_among_what_is_refused() -> None:
    """Protects the breadth of the run: it sends kernels that the settings do not have, and steps that are too
    large."""
    assert {reason for _, reason in run(8_000, seed=6, only="default-async").refused} >= {
        "kernel",
        "too_large",
    }


def _remembers_before_it_checks(self: Shard, received: Any, now: float) -> None:
    del now
    self.round.dimension = received.message.dimension
    if received.record.key != received.message.client.encode():
        raise BadRecord("forged", "too late")


MISTAKES: dict[str, tuple[Any, str, Any, str]] = {
    "a server remembers before it checks": (
        Shard,
        "_check",
        _remembers_before_it_checks,
        "server default-async",
    ),
    "a server trusts its clients": (Shard, "_check", trusts_the_sender, "server paper"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the run from finding nothing because it looks at nothing."""
    check_found(*MISTAKES[mistake], monkeypatch)


@pytest.mark.parametrize(
    ("number", "reason"), [(1.1e18, "implausible"), (-3e38, "implausible"), (float("inf"), "not_finite")]
)
def test_a_model_whose_squares_overflow_is_refused(number: float, reason: str) -> None:
    """Protects predictions: parameters that are finite, but whose products are not, would make them
    infinite."""
    member = FEDERATION.member(fuzz.CLIENT)
    record = KernelParameters(
        wire.VERSION, 0, wire.encode_array(np.array([0.5, 1.0, number, 0.0], np.float32))
    )
    (reply,) = member.role.receive(
        [member.decode(FuzzedRecord("model", b"kernel/0", KERNEL_PARAMETERS.encode(record)))], 1.0
    )
    assert isinstance(reply, Rejection)
    assert reply.error.reason == reason


def test_a_model_of_a_version_below_zero_is_refused() -> None:
    """Protects a client's updates: those that name such a version would all be refused."""
    member = FEDERATION.member(fuzz.CLIENT)
    marker = next(message for message in FEDERATION.heard(fuzz.CLIENT, "model") if message.key == MARKER_KEY)
    wrong = structs.replace(SHARD_VERSION.decode(marker.value), model_version=-1)
    with pytest.raises(BadRecord, match="malformed"):
        member.decode(FuzzedRecord("model", MARKER_KEY, SHARD_VERSION.encode(wrong), marker.partition))


@pytest.mark.parametrize(
    "key", [b"client/press-1", b"client/\xff", b"waiting/\x00\x00\x00\x00\x00\x00\x00\x01press-1"]
)
def test_a_damaged_state_of_the_client_is_refused(key: bytes) -> None:
    """Protects the operator from a traceback: a changelog of another layout has to be named, with what to
    do."""
    role = FEDERATION.member(fuzz.CLIENT).role
    with pytest.raises(BadRecord):
        role.restore(StateChange("state", 0, key, b"\x94\x01\xa1x\xc0\xc0"))


@pytest.mark.parametrize(
    "key", [b"round", b"client/press-1", b"client/\xff", b"pending/\xff", b"pending/a", b"step/slot/0/1"]
)
def test_a_damaged_state_of_the_server_is_refused(key: bytes) -> None:
    """Protects the operator from a traceback: a changelog of another layout has to be named, with what to
    do."""
    role = FEDERATION.member(fuzz.SERVER).role
    with pytest.raises(BadRecord):
        role.restore(StateChange("state", 0, key, b"\x94\x01\xa1x\xc0\xc0"))


@pytest.mark.parametrize(
    ("wrong", "reason"), [({"steps": b"\0" * 6}, "shape"), ({"kernels": [10_000]}, "kernel")]
)
def test_a_remembered_update_that_does_not_fit_the_model_is_refused(
    wrong: dict[str, Any], reason: str
) -> None:
    """Protects the operator from a traceback as the round closes: the server names the record at its
    start."""
    federation = fuzz.FEDERATIONS["paper-lockstep"]
    (pending, *_) = [
        one for one in federation.remembered(fuzz.SERVER) if (one.key or b"").startswith(b"pending/")
    ]
    value = UPDATE.encode(structs.replace(UPDATE.decode(pending.value), **wrong))
    with pytest.raises(BadRecord) as refused:
        federation.member(fuzz.SERVER).role.restore(
            StateChange("state", pending.partition, pending.key or b"", value)
        )
    assert refused.value.reason == reason
