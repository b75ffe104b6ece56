"""``streamfl simulate`` of small Frank-Wolfe federations, on a file of the test's own."""

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
name = "stays"
seed = 5
parties = ["bank", "shop", "post"]
columns = {{ bank = 3, shop = 4, post = 2 }}
[role]
kind = "{kind}"
[window]
rows = 60
[bounds]
{bounds}
[privacy]
epsilon = {epsilon}
delta = 0.001
insecure_test_noise = {insecure}
{privacy}
[learning]
{learning}
{more}
"""
LEARNING = {"estimator": '"frank-wolfe"', "radius": 1.5, "columns": 5, "iterations": 7}
PARTIES = {"bank": 3, "shop": 4, "post": 2}
COLUMNS, WINDOW, ROWS = sum(PARTIES.values()), 60, 100
SPLIT = "bank=0:3,shop=3:7,post=c7+c8"


class Line:
    """The command in this process. Every number of the table is a whole number of the window's, so that
    freezing rounds nothing."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self._monkeypatch, self._capture = monkeypatch, capture
        self.folder = folder
        random = np.random.default_rng(3)
        columns = random.integers(-(2**14), 2**14, (ROWS, COLUMNS), endpoint=True) / 2**14
        labels = np.clip(
            columns @ [0.4, 0, 0, -0.3, 0, 0, 0.2, 0, 0.1] + 0.1 * random.normal(size=ROWS), -1, 1
        )
        self.frame = pd.DataFrame(columns, columns=[f"c{number}" for number in range(COLUMNS)])
        self.frame["y"] = np.rint(labels * 2**18) / 2**18

    def __call__(
        self,
        *arguments: object,
        kind: str = "server",
        epsilon: float | str = "inf",
        insecure: bool = True,
        bounds: str = "",
        privacy: str = "",
        learning: str = "",
        more: str = "",
    ) -> tuple[int, str, str]:
        config, data = self.folder / "stays.toml", self.folder / "data.csv"
        defaults = [f"{key} = {value}" for key, value in LEARNING.items() if f"{key} =" not in learning]
        learning = "\n".join([*defaults, learning])
        given = {"epsilon": epsilon, "insecure": str(insecure).lower(), "bounds": bounds, "privacy": privacy}
        config.write_text(CONFIG.format(kind=f"dp-frank-wolfe-{kind}", learning=learning, more=more, **given))
        self.frame.to_csv(data, index=False)
        split = () if "--split" in arguments else ("--split", SPLIT)
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
