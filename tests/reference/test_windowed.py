"""Every metric about recent labels, in every system."""

from __future__ import annotations

import math
from random import Random

import pytest

from streamfl.contract.system import load
from streamfl.testing.fuzz.targets import RoleTarget
from streamfl.testing.proof import installed_proofs

PLACES = {name: proof.fuzz for name, proof in installed_proofs().items() if proof.fuzz}


@pytest.mark.parametrize("name", PLACES)
def test_what_is_said_of_late_ends(name: str) -> None:
    """Protects the dashboard from last week's value: every metric about recent labels has an end of
    validity."""
    found = set()
    for target_name, make in load(PLACES[name])(Random(0)).items():
        target = make(target_name)
        if isinstance(target, RoleTarget):
            target.finish()
            found |= {
                (one.name, one.until < math.inf)
                for one in target.role.measure()
                if "the last 1000" in one.help
                or (one.name.startswith("held_out_") and one.name != "held_out_entities")
            }
    assert {one for one, ends in found if not ends} == set()
    # DP Frank-Wolfe measures nothing against labels, because such a metric would reveal them without noise.
    assert bool(found) == (name != "dp-frank-wolfe")
