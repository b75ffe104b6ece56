"""A short run of ``make fuzz``, and checks that it can find something."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from pofmkl.proof import fuzz as pofmkl
from wrong_messages import check_found

from streamfl.contract.role import Send
from streamfl.contract.system import load
from streamfl.encoding import wire
from streamfl.fdskl.learning.model import LARGEST_ALPHA
from streamfl.pofmkl.client import uploads
from streamfl.records.fields import LARGEST_NUMBER
from streamfl.records.samples import SampleReader, SamplesSection
from streamfl.testing.extremes import Extreme
from streamfl.testing.fuzz import campaign
from streamfl.testing.fuzz import targets as targets_module
from streamfl.testing.fuzz.bounds import declared_bounds
from streamfl.testing.fuzz.campaign import run
from streamfl.testing.fuzz.clients import anybodys_samples
from streamfl.testing.fuzz.mutations import FuzzedRecord, Mutator
from streamfl.testing.fuzz.targets import RoleTarget
from streamfl.testing.proof import installed_proofs
from streamfl.vafl.messages import LARGEST_COMPONENT

# Of each system, in so many rounds: a system with more targets gives each of them fewer.
MESSAGES, ROUNDS = 12_000, 2
# Seeds with a reason of each kind. VAFL finds few messages implausible.
SEED, OTHERS = 8, {"vafl": 9}
# Usually half of all messages are refused. This system treats an unreadable row as zeros, so fewer are
# refused.
LEAST = {"dp-frank-wolfe": 0.3}
SYSTEMS = {name: load(proof.fuzz) for name, proof in installed_proofs().items() if proof.fuzz}


def test_a_name_that_no_target_has_is_an_error() -> None:
    """Protects whoever mistypes it: a campaign without a target would never end."""
    with pytest.raises(ValueError, match="no target is called like 'pofmlk'"):
        run(1, seed=0, only="pofmlk")


@pytest.mark.long
@pytest.mark.parametrize("system", SYSTEMS)
def test_malformed_messages_are_refused_and_change_nothing(
    system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects every process of a federation from anybody who can write to its topics: no error, no hang, no
    growth, no change."""
    made = SYSTEMS[system]
    monkeypatch.setattr(
        campaign, "targets", lambda random, _only: (make(name) for name, make in made(random).items())
    )
    monkeypatch.setattr(campaign, "BLOCK", math.ceil(MESSAGES / ROUNDS / len(made(Random(0)))))
    report = run(MESSAGES, seed=OTHERS.get(system, SEED))
    assert report.defects == []
    assert report.messages >= MESSAGES
    assert len(report.memory) == ROUNDS
    # Messages are wrong enough to be refused, but right enough to get past the first byte: every target
    # accepts some.
    refused = Counter(
        {name: sum(n for (target, _), n in report.refused.items() if target == name) for name in report.taken}
    )
    least = LEAST.get(system, 0.5)
    assert all(least < refused[name] / count < 1 for name, count in report.taken.items()), refused
    reasons = {reason for _, reason in report.refused}
    assert reasons >= {"malformed", "oversized", "version", "forged", "not_finite", "implausible"}
    assert reasons & ({"shape", "out_of_bounds"} if system in LEAST else {"shape"})
    assert report.growth() < 50


@pytest.mark.long
@pytest.mark.parametrize("system", SYSTEMS)
def test_what_is_recorded_is_always_the_same(system: str) -> None:
    """Protects a seed of `make fuzz`: another process records the same bytes."""
    targets = [make(name) for name, make in SYSTEMS[system](Random(0)).items()]
    recorded = {id(one.federation): one.federation for one in targets if isinstance(one, RoleTarget)}
    assert recorded
    # Several targets play members of one federation.
    for once in recorded.values():
        again = replace(once)
        for member in again.settings:
            assert again.heard(member) == once.heard(member)
            assert again.remembered(member) == once.remembered(member)


def test_the_same_seed_makes_the_same_messages() -> None:
    """Protects the reproduction of a defect: seed, target and block are enough."""
    federation = pofmkl.FEDERATIONS["default-async"]
    messages = [*federation.heard(pofmkl.SERVER), *federation.heard(pofmkl.CLIENT)]
    first, second, other = (Mutator(Random(seed), messages) for seed in (1, 1, 2))
    made = [[mutator.message() for _ in range(500)] for mutator in (first, second, other)]
    assert made[0] == made[1]
    assert made[0] != made[2]
    assert len(set(made[0])) > 400


def _takes_any_number(content: bytes, dtype: Any, shape: tuple[int, ...], name: str) -> Any:
    del name
    return np.frombuffer(content, dtype).reshape(shape)


MISTAKES: dict[str, tuple[Any, str, Any, str]] = {
    "arrays are not checked": (targets_module, "decode_array", _takes_any_number, "decode arrays"),
    "what a decoder raises gets out": (
        wire.Codec,
        "decode",
        lambda self, value: self._decoder.decode(value),
        "decode",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the run from finding nothing because it checks nothing."""
    check_found(*MISTAKES[mistake], monkeypatch)


def test_a_message_that_could_not_be_sealed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects a federation that gives its members keys later: without a partition a message has no seal, and
    the worker would end."""
    federation = pofmkl.FEDERATIONS["default-async"]
    federation.heard(pofmkl.CLIENT)

    def without_partition(
        channel: str, key: bytes, value: bytes, _partition: int, headers: tuple[tuple[str, bytes], ...]
    ) -> Send:
        return Send(channel, key, value, None, headers)

    monkeypatch.setattr(uploads, "Send", without_partition)
    with pytest.raises(AssertionError, match="a message to updates names no partition"):
        RoleTarget("client", Random(0), federation, pofmkl.CLIENT)


def test_laws_see_labels_outside_of_their_range() -> None:
    """Protects a role of one's own: with bounds that only labels within label_range keep, it would stop at
    every start."""
    section = SamplesSection(topic="samples", features=["x"], label="y")
    decode = SampleReader(section).decode
    found = [decode(record) for _, record in anybodys_samples(section)(Extreme(number=999.0))]
    assert [(one.features, one.label) for one in found] == [((999.0,), 0.5), ((0.5,), 999.0)]


def test_a_role_that_keeps_a_refused_message_is_found() -> None:
    """Protects the comparison of everything that a role holds: a change that is not in a changelog counts
    too."""
    federation = pofmkl.FEDERATIONS["default-async"]
    member = federation.member(pofmkl.CLIENT)
    before = targets_module.fingerprint(member.role)
    assert targets_module.fingerprint(member.role) == before
    member.role._scores.learnt(np.zeros(1), np.ones(1), 0.0)  # type: ignore[attr-defined]
    changed = targets_module.fingerprint(member.role)
    assert changed != before
    member.role.receive([member.decode(federation.heard(pofmkl.CLIENT, "samples")[0])], 1e9)
    assert targets_module.fingerprint(member.role) not in (before, changed)


def test_wrong_messages_differ_from_the_real_ones() -> None:
    """Protects the count: an unchanged message must not count as malformed."""
    real = pofmkl.FEDERATIONS["paper-lockstep"].heard(pofmkl.SERVER)
    mutator = Mutator(Random(3), real)
    made = [mutator.message() for _ in range(2_000)]
    unchanged = sum(message in real for message in made)
    assert unchanged == 0
    assert isinstance(made[0], FuzzedRecord)


def test_numbers_at_bounds_and_next_to_them_are_drawn() -> None:
    """Protects comparisons that are off by one: numbers far from a bound do not find them."""
    bounds = set(declared_bounds())
    # Bounds of messages, of state, and of constants, in every room.
    assert bounds >= {2**53, 127, 1e12, LARGEST_COMPONENT, LARGEST_ALPHA, LARGEST_NUMBER, 1e150}
    mutator = Mutator(Random(5), [FuzzedRecord("samples", b"e", b'{"id": "e", "t": 1.5}')])
    # -0.0 equals 0.
    drawn, zeros = set[float](), set[str]()
    for _ in range(40_000):
        with suppress(ValueError, AttributeError, RecursionError, UnicodeDecodeError):
            found = [
                one
                for one in json.loads(mutator.message().value or b"").values()
                if isinstance(one, (int, float))
            ]
            drawn.update(found)
            zeros.update(repr(one) for one in found if one == 0)
    wanted = {
        math.nextafter(bound, way)
        for bound in (1e150, LARGEST_COMPONENT, LARGEST_ALPHA)
        for way in (0.0, math.inf)
    }
    assert drawn >= wanted | {
        2**53 + 1,
        2**53 - 1,
        128,
        5e-324,
        -5e-324,
        sys.float_info.max,
        -sys.float_info.max,
    }
    assert zeros >= {"0.0", "-0.0"}
