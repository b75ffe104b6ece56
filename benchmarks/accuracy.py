"""``python -m benchmarks.accuracy``: run what is missing, write docs/accuracy.json, docs/accuracy.md and
docs/accuracy.png."""

from __future__ import annotations

import argparse
import os
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from benchmarks.accuracy_document import fill, picture, state, tables
from benchmarks.accuracy_plan import METHODS, SEEDS, plan
from benchmarks.accuracy_runs import ROOT, Cache, Stream, load_streams, measure, pending


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy", description="Measure the error of every method."
    )
    parser.add_argument(
        "--only", action="append", help="a method's name or a pattern; may be given several times"
    )
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="this many of the seeds")
    parser.add_argument(
        "--list", action="store_true", help="print what would be run, and run and write nothing"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs", help="the folder of accuracy.json, .md and .png"
    )
    arguments = parser.parse_args()
    cache = Cache(arguments.out / "accuracy.json")
    wanted = arguments.only or ["*"]
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in METHODS):
            parser.error(f"--only {pattern}: known are {'; '.join(METHODS)}")
    runs = [
        run
        for run in dict.fromkeys(plan())
        if run.seed < arguments.seeds and any(fnmatchcase(run.method, pattern) for pattern in wanted)
    ]
    if arguments.list:
        for run, _ in pending(runs, METHODS, cache):
            print(run.key)
        return
    folder = os.environ.get("STREAMFL_DATA")
    if not folder:
        parser.error(
            "the environment variable STREAMFL_DATA has to name the folder with the data sets and streams.py"
        )
    try:
        streams = load_streams(Path(folder))
    except FileNotFoundError as error:
        parser.error(f"STREAMFL_DATA={folder}: {error}")

    @lru_cache(maxsize=1)
    def deal(data: str, clients: int, samples: int, seed: int) -> Stream:
        inputs, labels, _ = streams.make(data, clients, samples, seed, Path(folder))
        return Stream(inputs.swapaxes(0, 1), labels.T)

    measure(runs, METHODS, cache, deal, lambda text: print(text, flush=True))
    document = arguments.out / "accuracy.md"
    due = [run for run, _ in pending(list(dict.fromkeys(plan())), METHODS, cache)]
    contents = tables(cache) | {"state": state(due, cache)}
    document.write_text(fill(document.read_text(encoding="utf-8"), contents), encoding="utf-8")
    picture(cache, arguments.out / "accuracy.png")


if __name__ == "__main__":
    main()
