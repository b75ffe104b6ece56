"""Each reason is declared with its meaning and remedy where it is raised. Its counter exists from a worker's
start."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from house.raised_reasons import raised_reasons

import streamfl
from streamfl.contract.refusals import IGNORED, NOTICES, REFUSALS, Reason
from streamfl.contract.system import System, installed_systems

PACKAGE = Path(streamfl.__file__).parent
PATHS = [path for folder in (PACKAGE, PACKAGE.parent / "connectors") for path in folder.rglob("*.py")]
OWN = {
    PACKAGE / system.roles.split(".")[1]: system
    for system in installed_systems()
    if system.roles.startswith("streamfl.")
}
Declared = Mapping[str, Reason]


@pytest.mark.long
@pytest.mark.parametrize(
    ("error", "common", "own"),
    [
        ("BadRecord", REFUSALS, lambda system: system.refusals),
        ("IgnoredRecord", IGNORED, lambda system: {}),
        ("OperatorNotice", NOTICES, lambda system: system.notices),
    ],
)
def test_a_reason_is_declared_just_if_it_is_raised(
    error: str, common: Declared, own: Callable[[System], Declared]
) -> None:
    """Protects who looks a reason up, and the first refusal: Prometheus sees no growth in a counter whose
    first value is 22."""
    raised = defaultdict[Path | None, set[str]](set)
    for path, reasons in raised_reasons(error, PATHS).items():
        raised[next((folder for folder in OWN if folder in path.parents), None)] |= reasons
    assert raised[None] <= common.keys()
    assert common.keys() <= set().union(*raised.values())
    for folder, system in OWN.items():
        assert raised[folder] - common.keys() == own(system).keys(), folder
