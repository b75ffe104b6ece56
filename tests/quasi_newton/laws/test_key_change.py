"""The coordinator's key changes under a running federation: members are restarted in any order, and nobody
waits for ever."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quasi_newton.federations import Secrets, settings_of
from quasi_newton.laws.closed_loop import ClosedLoop

from streamfl.quasi_newton.encryption.key_file import add_key
from streamfl.quasi_newton.members.coordinator import CoordinatorTask
from streamfl.quasi_newton.members.training_progress import ALIGNING, DECIDING, OUTPUTS, READY, TRAINED

SMALL: dict[str, Any] = {
    "learning": {"batch": 40, "min_batch": 40, "min_support": 2, "epochs": 2},
    "alignment": {"entities": 40},
}
MEMBERS = ("g", "h1", "c")
MOST_TURNS = 3_000


@pytest.fixture(name="secrets")
def _secrets(tmp_path: Path) -> Secrets:
    return Secrets(tmp_path)


def federation(secrets: Secrets, bits: int = 512, **sections: dict[str, Any]) -> ClosedLoop:
    loop = ClosedLoop(
        {name: settings_of(name, 1, secrets, bits, columns=1, **SMALL, **sections) for name in MEMBERS}
    )
    loop.write_table(90, 1, 1, missing=2)
    return loop


def rotated(secrets: Secrets, bits: int = 512, old: int = 512) -> str:
    """Put another key at the head of the coordinator's file, and give its fingerprint."""
    calls = iter(range(10**9))
    path, _ = secrets.keys(old)
    return add_key(
        Path(path), bits, lambda size: hashlib.shake_256(f"next {next(calls)}".encode()).digest(size)
    ).public.fingerprint


def restart_with(
    loop: ClosedLoop,
    name: str,
    secrets: Secrets,
    fingerprint: str,
    bits: int = 512,
    old: int = 512,
    **sections: dict[str, Any],
) -> None:
    encryption = {"key_fingerprint": fingerprint, "key_bits": bits}
    own = settings_of(name, 1, secrets, old, columns=1, **SMALL, encryption=encryption, **sections)
    loop.members[name].settings = own
    loop.restart(name)


def until(loop: ClosedLoop, is_so: Callable[[], bool]) -> None:
    """Messages one by one, until it is so."""
    for _ in range(MOST_TURNS):
        moved = False
        for name, member in loop.members.items():
            users = bool(member.unread) and member.unread[0][0].endswith(("samples", "labels"))
            moved |= loop.step(name, 1000 if users else 1)
            if is_so():
                return
        loop.now += 0.001 if moved else 1.0
    raise AssertionError("it never comes so far")


def coordinator(loop: ClosedLoop) -> CoordinatorTask:
    task = loop.members["c"].role.task(0)
    assert isinstance(task, CoordinatorTask)
    return task


def fingerprints(loop: ClosedLoop) -> list[str]:
    return [hashlib.sha256(loop.party(name).progress.modulus).hexdigest() for name in ("g", "h1")]


def learnt(loop: ClosedLoop) -> list[bytes]:
    models = [loop.party(name).trained for name in ("g", "h1")]
    return [model.encode() for model in models if model is not None]


def assert_trained(loop: ClosedLoop, run: int, fingerprint: str) -> None:
    """The latest training has come to its end under this key, and to the weights of the arithmetic alone."""
    assert [loop.party(name).progress.phase for name in ("g", "h1")] == [TRAINED, TRAINED]
    assert [loop.party(name).progress.run for name in ("g", "h1")] == [run, run]
    assert fingerprints(loop) == [fingerprint] * 2
    for name, model in zip(("g", "h1"), loop.direct().model, strict=True):
        found = loop.party(name).iterates.model
        assert found is not None
        assert np.array_equal(found, model)
    assert [member.role.trouble for member in loop.members.values()] == [None] * 3


STAGES: dict[str, Callable[[ClosedLoop], bool]] = {
    "one is ready": lambda loop: loop.party("h1").progress.phase == READY,
    "a beginning is unread": lambda loop: (
        coordinator(loop).run.number == 1 and loop.party("g").progress.phase == READY
    ),
    "entities are compared": lambda loop: loop.party("h1").progress.phase == ALIGNING,
    "in a round": lambda loop: (
        loop.party("g").progress.phase == OUTPUTS and loop.party("g").progress.round == 2
    ),
    "before a decision": lambda loop: (
        loop.party("h1").progress.phase == DECIDING and loop.party("h1").progress.round == 2
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("stage", "order"),
    [*zip(STAGES, ("ghc", "hcg", "gch", "cgh", "hgc"), strict=True), *((stage, "chg") for stage in STAGES)],
)
def test_a_training_begins_again_under_the_new_key_whoever_is_restarted_first(
    secrets: Secrets, stage: str, order: str
) -> None:
    """Protects a rotation: no message is lost for a key that two members do not share yet, nobody waits for
    ever, nothing is learnt under a key that is not pinned, and the result is exact.
    """
    loop = federation(secrets)
    until(loop, lambda: STAGES[stage](loop))
    new = rotated(secrets)
    for member in order:
        restart_with(loop, {"h": "h1"}.get(member, member), secrets, new)
        # The others hear what it says, and it hears them, before the next one is restarted.
        loop.settle()
    assert_trained(loop, coordinator(loop).run.number, new)
    assert max(member.role.counts.failed_trainings for member in loop.members.values()) <= 1


@pytest.mark.parametrize(("old", "bits", "order"), [(512, 528, "ghc"), (528, 512, "chg")])
def test_the_new_key_may_be_longer_or_shorter(secrets: Secrets, old: int, bits: int, order: str) -> None:
    """Protects a federation that needs longer keys one day: another name would mean other batches, which tell
    more of labels."""
    loop = federation(secrets, old)
    until(loop, lambda: STAGES["before a decision"](loop))
    new = rotated(secrets, bits, old)
    for member in order:
        restart_with(loop, {"h": "h1"}.get(member, member), secrets, new, bits, old)
        loop.settle()
    assert_trained(loop, 2, new)


def test_all_may_be_restarted_before_anybody_hears_another(secrets: Secrets) -> None:
    """Protects a rotation by a maintenance window: what was on its way under the old key is not used under
    the new one."""
    loop = federation(secrets)
    until(loop, lambda: STAGES["in a round"](loop))
    new = rotated(secrets)
    for name in MEMBERS:
        restart_with(loop, name, secrets, new)
    loop.settle()
    assert_trained(loop, 2, new)


def test_between_trainings_nothing_ends(secrets: Secrets) -> None:
    """Protects the model: what was learnt under the old key stays, and the next training is under the new
    one."""
    again = {"retraining": {"every_seconds": 50.0, "entities": 1}}
    loop = federation(secrets, **again)
    until(loop, lambda: all(loop.party(name).progress.phase == TRAINED for name in ("g", "h1")))
    old = fingerprints(loop)
    models = learnt(loop)
    new = rotated(secrets)
    for name in MEMBERS:
        restart_with(loop, name, secrets, new, **again)
        assert loop.members[name].role.counts.failed_trainings == 0
    assert fingerprints(loop) == old != [new, new]
    assert learnt(loop) == models
    loop.write_table(180, 1, 1)
    loop.settle()
    assert fingerprints(loop) == [new, new]
    assert all(loop.party(name).progress.phase == TRAINED for name in ("g", "h1"))


@pytest.mark.parametrize("party", ["g", "h1"])
def test_a_party_may_have_another_secret_for_the_next_training(secrets: Secrets, party: str) -> None:
    """Protects a party that has lost its file: what it has learnt stays, and it learns on."""
    again = {"retraining": {"every_seconds": 50.0, "entities": 1}}
    loop = federation(secrets, **again)
    until(loop, lambda: all(loop.party(name).progress.phase == TRAINED for name in ("g", "h1")))
    models = learnt(loop)
    Path(loop.members[party].settings.encryption.secret_file or "").write_bytes(
        hashlib.sha256(b"another").digest()
    )
    loop.restart(party)
    assert learnt(loop) == models
    loop.write_table(180, 1, 1)
    loop.settle()
    assert [loop.party(name).progress.phase for name in ("g", "h1")] == [TRAINED, TRAINED]
    assert loop.party("g").progress.run > 1


def test_who_waits_for_another_key_is_named(secrets: Secrets) -> None:
    """Protects the operator in the midst of a rotation, and from a slip in a fingerprint or a length: the
    coordinator says who has which, and nobody begins a training that one member would refuse."""
    loop, own = federation(secrets), secrets.keys(512)[1]
    for fingerprint, bits, text in (
        (own, 1024, "of 1024 bits, and this coordinator has"),
        ("ab" * 32, 512, "'h1' is ready for a training under the key abababab"),
    ):
        restart_with(loop, "h1", secrets, fingerprint, bits)
        loop.settle()
        assert text in str(loop.members["c"].role.trouble)
        assert [loop.party(name).progress.phase for name in ("g", "h1")] == [READY, READY]
    assert own in str(loop.members["c"].role.trouble)
    restart_with(loop, "h1", secrets, own)
    loop.settle()
    assert_trained(loop, 1, own)
