"""Deliberate bugs in the code, to check that a simulation finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamfl.roles.partitioned_role import PartitionedRole
from streamfl.state.changelog import ChangedParts, NamedParts
from streamfl.testing.faults import Verdict

MOST_SEEDS = 200
# Seeds that may be run in vain. A search for the one that finds it, in each run of the tests, takes minutes.
FEW_SEEDS = 30

Mutation = Callable[[pytest.MonkeyPatch], None]


def after(patch: pytest.MonkeyPatch, owner: type, name: str, change: Callable[..., Any]) -> None:
    """Wrap a method. ``change`` takes its result, the object and the arguments, and returns the new
    result."""
    real = getattr(owner, name)
    patch.setattr(owner, name, lambda self, *arguments: change(real(self, *arguments), self, *arguments))


def instead(patch: pytest.MonkeyPatch, owner: type, name: str, change: Callable[..., Any]) -> None:
    """Replace a method. ``change`` takes the real method, the object and the arguments."""
    real = getattr(owner, name)
    patch.setattr(owner, name, lambda self, *given, **named: change(real, self, *given, **named))


def without(*prefixes: bytes, role: Any = PartitionedRole) -> Mutation:
    """A mutation: a member's role does not restore keys with these prefixes."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        real = role.restore
        patch.setattr(
            role,
            "restore",
            lambda self, change: None if change.key.startswith(prefixes) else real(self, change),
        )

    return mutate


def written(prefix: bytes, change: Callable[[Any], Any]) -> Mutation:
    """A mutation: values under keys with this prefix are changed when they are written."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        def remember(real: Any, self: Any, key: bytes, value: Any) -> None:
            real(self, key, change(value) if key.startswith(prefix) else value)

        def remember_named(real: Any, self: Any, name: Any, value: Any) -> None:
            real(self, name, change(value) if self._prefix.startswith(prefix) else value)

        instead(patch, ChangedParts, "remember", remember)
        # Named parts are written without a call to the above.
        instead(patch, NamedParts, "remember", remember_named)

    return mutate


def check_caught(name: str, simulate: Callable[[int], Verdict], first: int = 0) -> None:
    """Within 200 seeds a check fails, with a message about the effect of the bug. ``first`` is near the seed
    that finds it."""
    for tried, seed in enumerate((first, *range(MOST_SEEDS))):
        failure = simulate(seed).failure
        if failure is not None:
            print(f"{name}: caught by seed {seed}: {failure}")
            # A state that the role cannot restore is found when it is written, not at a later restart.
            assert not name.startswith("written: ") or "would be refused when read" in failure, failure
            # Any check would catch a mutation that raises such an error by itself.
            assert not failure.startswith(("TypeError", "AttributeError", "NameError", "KeyError")), failure
            assert tried <= FEW_SEEDS, f"{name}: begin with seed {seed}, which finds it"
            return
    pytest.fail(f"{name}: not caught by {MOST_SEEDS} seeds")
