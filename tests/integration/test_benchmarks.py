"""Every benchmark, in its smallest form."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The benchmarks are not part of the installed package.
sys.path.insert(0, str(ROOT))
from benchmarks.__main__ import BENCHMARKS  # noqa: E402

pytestmark = [pytest.mark.broker, pytest.mark.long]

ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_ends_with_figures(name: str, tmp_path: Path) -> None:
    """Protects ``make bench``: a benchmark that waits for ever, or expects an old log format, is found
    here."""
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "--smallest",
        "--only",
        name,
        "--out",
        str(tmp_path / "benchmark.json"),
    ]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "benchmark.json").read_text())["figures"]
    assert figures
    assert [one for one in figures if not math.isfinite(one["value"])] == []
