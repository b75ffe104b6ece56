"""Guest, host and coordinator with keys, on the memory bus: what somebody else wrote is refused, and the
training goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from identities import SignedFederation
from quasi_newton.federations import settings_of
from quasi_newton.makers import problem

from streamfl.quasi_newton.config import COORDINATOR, GUEST, HOST, QuasiNewtonSettings
from streamfl.quasi_newton.training.party import PartyTask
from streamfl.quasi_newton.training.training_progress import TRAINED
from streamfl.runtime.bus import Outgoing

MEMBERS = {"g": GUEST, "h1": HOST, "c": COORDINATOR}
SMALL: dict[str, Any] = {
    "learning": {"batch": 40, "min_batch": 40, "min_support": 2, "epochs": 2},
    "alignment": {"entities": 40, "settle_seconds": 1.0},
}


def signed_settings(member: str, sections: dict[str, dict[str, Any]]) -> QuasiNewtonSettings:
    federation = {"name": "f", "parties": ["g", "h1"], **sections.get("federation", {})}
    return settings_of(member, 1, columns=1, **{**sections, "federation": federation}, **SMALL)


class Federation(SignedFederation):
    """One guest, one host and a coordinator, and a table."""

    def __init__(self, folder: Path, keys: bool = True) -> None:
        super().__init__(folder, MEMBERS, "c", signed_settings, keys)
        inputs, labels = problem(90, 2)
        for row in range(len(labels)):
            key = b"customer %d" % row
            for number, party in enumerate(("g", "h1")):
                self.bus.write(
                    [Outgoing(f"{party}-samples", key, json.dumps({"x0": inputs[row, number]}).encode(), 0)]
                )
            self.bus.write([Outgoing("labels", key, json.dumps({"y": int(labels[row] > 0)}).encode(), 0)])

    def models(self) -> list[bytes]:
        tasks = [self.workers[name].role.task(0) for name in ("g", "h1")]  # type: ignore[attr-defined]
        found = []
        for task in tasks:
            assert isinstance(task, PartyTask)
            assert task.progress.phase == TRAINED, task.progress
            assert task.iterates.model is not None
            found.append(np.array(task.iterates.model).tobytes())
        return found


@pytest.fixture(name="usual", scope="module")
def _usual(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """What is learnt without keys and without strangers."""
    federation = Federation(tmp_path_factory.mktemp("usual"), keys=False)
    federation.settle()
    return federation.models()


def test_keys_change_nothing_of_what_is_learnt(tmp_path: Path, usual: list[bytes]) -> None:
    """Protects a federation that gives its members keys: each of the three roles signs what it says, and
    hears the others."""
    federation = Federation(tmp_path)
    federation.settle()
    assert federation.models() == usual
    federation.check_all_signed(
        "g.uploads", "h1.uploads", "g.decisions", "h1.decisions", "h1.outputs", "h1.residuals"
    )


@pytest.mark.parametrize(
    ("topic", "hears", "kind"),
    [
        ("h1.uploads", "c", "ready"),
        ("g.uploads", "c", "sums"),
        ("h1.decisions", "h1", "step"),
        ("g.decisions", "g", "opened"),
        ("h1.outputs", "g", "dots"),
        ("h1.residuals", "h1", "residuals"),
    ],
)
def test_what_somebody_else_wrote_is_refused_and_the_training_goes_on(
    tmp_path: Path, usual: list[bytes], topic: str, hears: str, kind: str
) -> None:
    """Protects each link: whoever may write to the broker cannot begin, change or end a training in a
    member's name."""
    federation = Federation(tmp_path)
    federation.check_strangers_are_refused(
        topic, hears, kind, "h1.uploads" if topic != "h1.uploads" else "g.uploads"
    )
    assert federation.models() == usual
