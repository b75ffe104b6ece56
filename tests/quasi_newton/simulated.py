"""``streamfl simulate`` of small quasi-Newton federations, on a file of the test's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import run_command
from numpy.typing import NDArray

CONFIG = """
[federation]
name = "loans"
seed = 5
parties = {parties}
[role]
kind = "quasi-newton-{role}"
[learning]
batch = 100
min_batch = 64
min_support = 5
memory = 3
curvature_every = 2
regularisation = 0.01
{learning}
[alignment]
entities = 100
held_out = {held_out}
[encryption]
precision = "{precision}"
key_bits = 512
{more}
"""
ROWS, TEST = 640, 128
NAMES = ["age", "income", "debts", "visits", "returns", "parcels"]
TWO, THREE = ["bank", "shop"], ["bank", "shop", "post"]
SPLITS = {2: "bank=0:2,shop=2:6", 3: "bank=0:2,shop=2:4,post=parcels+returns"}


class Line:
    """The command in this process."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self._monkeypatch, self._capture = monkeypatch, capture
        self.folder = folder
        draws = np.random.default_rng(3)
        scaled = draws.normal(size=(ROWS, 6)) @ (np.eye(6) + 0.3 * draws.normal(size=(6, 6)))
        self.frame = pd.DataFrame(scaled * [1, 2, 3, 4, 5, 6] + 10, columns=NAMES)
        chance = 1 / (1 + np.exp(-scaled @ [1.0, -1.0, 0.5, 1.5, -0.5, 1.0] + 0.5))
        self.frame["y"] = (draws.random(ROWS) < chance).astype(int)

    def __call__(
        self,
        *arguments: object,
        parties: list[str] = TWO,
        role: str = "coordinator",
        precision: str = "plain",
        learning: str = "",
        more: str = "",
        guest: str | None = None,
        held_out: float = 0.0,
    ) -> tuple[int, str, str]:
        names = json.dumps(parties) + ("" if guest is None else f'\nguest = "{guest}"')
        config, data = self.folder / "loans.toml", self.folder / "data.csv"
        given = {
            "role": role,
            "precision": precision,
            "learning": learning,
            "more": more,
            "held_out": held_out,
        }
        config.write_text(CONFIG.format(parties=names, **given))
        self.frame.to_csv(data, index=False)
        split = () if "--split" in arguments else ("--split", SPLITS[len(parties)])
        return run_command(
            self._monkeypatch, self._capture, "simulate", config, "--data", data, *split, *arguments
        )

    def json(self, *arguments: object, **settings: Any) -> dict[str, Any]:
        code, out, error = self(*arguments, "--format", "json", **settings)
        assert code == 0, error
        assert out.count("\n") == 1
        return dict(json.loads(out))

    def traced(self, *arguments: object, **settings: Any) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Figures and the trace."""
        found = self.json(*arguments, "--trace", self.folder, **settings)
        with np.load(self.folder / "trace.npz", allow_pickle=False) as archive:
            return found, dict(archive)
