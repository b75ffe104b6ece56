"""Benchmarks, in their smallest form."""

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
# Each part is one process: to load the libraries takes longer than most benchmarks.
PARTS = 3
# "identity" uses what the first two use, and test_image builds and starts what "deploy" measures.
TRIED_ELSEWHERE = {"end-to-end", "one-core", "deploy"}


@pytest.mark.parametrize("part", range(PARTS))
def test_benchmarks_end_with_figures(part: int, tmp_path: Path) -> None:
    """Protects ``make bench``: a benchmark that waits for ever, or expects an old log format, is found
    here."""
    names = [name for name in BENCHMARKS if name not in TRIED_ELSEWHERE][part::PARTS]
    out = tmp_path / "benchmark.json"
    command = [sys.executable, "-m", "benchmarks", "--smallest", "--out", str(out)]
    command += [word for name in names for word in ("--only", name)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())["figures"]
    assert len(figures) >= len(names)
    assert [one for one in figures if not math.isfinite(one["value"])] == []
