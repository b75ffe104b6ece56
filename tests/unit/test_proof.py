"""Proofs of installed systems: none that is registered may be missing from a run that says that everything
holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from streamfl.contract.role import ConfigurationError
from streamfl.contract.system import installed_systems
from streamfl.testing import proof as proof_module
from streamfl.testing.proof import GROUP, Proof, installed_proofs

FIRST, SECOND, *_ = (system.name for system in installed_systems())

Register = Callable[[dict[str, Any]], None]


@pytest.fixture(name="register")
def _register(monkeypatch: pytest.MonkeyPatch) -> Iterator[Register]:
    """Replaces what is registered: by name, what its entry point loads to, or raises."""

    class Registered(EntryPoint):
        found: dict[str, Any]

        def load(self) -> Any:
            found = Registered.found[self.name]
            if isinstance(found, Exception):
                raise found
            return found

    def register(found: dict[str, Any]) -> None:
        Registered.found = found
        entries = [Registered(name, f"{name}.proof:PROOF", GROUP) for name in found]
        monkeypatch.setattr(proof_module, "entry_points", lambda group: entries)
        installed_proofs.cache_clear()

    yield register
    monkeypatch.undo()
    installed_proofs.cache_clear()


def test_they_are_in_the_order_of_the_systems(register: Register) -> None:
    """Protects a seed of `make fuzz`: its targets draw in this order, whatever order packages were installed
    in."""
    register({SECOND: Proof("second:FAULTS"), "of-no-system": Proof(), FIRST: Proof("first:FAULTS")})
    assert list(installed_proofs().items()) == [
        (FIRST, Proof("first:FAULTS")),
        (SECOND, Proof("second:FAULTS")),
    ]


def test_one_that_cannot_be_loaded_ends_the_run(register: Register) -> None:
    """Protects the verdict: a system that is left out would pass for one that holds."""
    register({FIRST: Proof(), SECOND: ImportError("no module")})
    with pytest.raises(ImportError, match="no module"):
        installed_proofs()
    register({FIRST: "no proof"})
    with pytest.raises(ConfigurationError, match=f"{FIRST}.proof:PROOF .* it is a str, not a Proof"):
        installed_proofs()
