"""Mistakes put into the code on purpose, and whether a simulation finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamfl.changelog import ChangedParts
from streamfl.partitioned_role import PartitionedRole
from streamfl.role import StateChange
from streamfl.testing.faults import Verdict

MOST_SEEDS = 200

Mutation = Callable[[pytest.MonkeyPatch], None]


def after(patch: pytest.MonkeyPatch, owner: type, name: str, change: Callable[..., Any]) -> None:
    """``change`` takes what the method gave, the object and the method's arguments, and gives what is returned instead."""
    real = getattr(owner, name)
    patch.setattr(owner, name, lambda self, *arguments: change(real(self, *arguments), self, *arguments))


def instead(patch: pytest.MonkeyPatch, owner: type, name: str, change: Callable[..., Any]) -> None:
    """``change`` takes the real method, the object and the arguments."""
    real = getattr(owner, name)
    patch.setattr(owner, name, lambda self, *given, **named: change(real, self, *given, **named))


def without(*prefixes: bytes) -> Mutation:
    """A member's role takes back everything but what these keys begin."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        real = PartitionedRole.restore

        def restore(self: PartitionedRole[Any], change: StateChange) -> None:
            if not change.key.startswith(prefixes):
                real(self, change)

        patch.setattr(PartitionedRole, "restore", restore)

    return mutate


def written(prefix: bytes, change: Callable[[Any], Any]) -> Mutation:
    """What is remembered under these keys is another thing."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        def remember(real: Any, self: Any, key: bytes, value: Any) -> None:
            real(self, key, change(value) if key.startswith(prefix) else value)

        instead(patch, ChangedParts, "remember", remember)

    return mutate


def check_caught(name: str, simulate: Callable[[int], Verdict], first: int = 0) -> None:
    """Within 200 seeds a check fails, and says something about what it did wrong."""
    for seed in (first, *range(MOST_SEEDS)):
        failure = simulate(seed).failure
        if failure is not None:
            print(f"{name}: caught by seed {seed}: {failure}")
            # What a role would not take back is found as it is written, not by whoever restarts some time later.
            assert not name.startswith("written: ") or "would be refused when read" in failure, failure
            # A mutation that stumbles over itself would be caught by anything.
            assert not failure.startswith(("TypeError", "AttributeError", "NameError", "KeyError")), failure
            return
    pytest.fail(f"{name}: not caught by {MOST_SEEDS} seeds")
