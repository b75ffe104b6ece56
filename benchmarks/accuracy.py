"""``python -m benchmarks.accuracy``: run what is missing, write docs/accuracy.json, docs/accuracy.md and
docs/accuracy.png."""

from __future__ import annotations

from functools import lru_cache

from benchmarks.accuracy_document import fill_in, picture, state, tables
from benchmarks.accuracy_plan import METHODS, SEEDS, plan
from benchmarks.accuracy_runs import Cache, Stream, load_streams, measure, pending
from benchmarks.commands import DOCS, arguments, data_folder, is_wanted, refuse, several


def main() -> None:
    given = arguments(
        "accuracy",
        "Measure the error of every method.",
        only=several("a method's name or a pattern"),
        seeds=(len(SEEDS), "this many of the seeds"),
        list=(False, "print what would be run, and run and write nothing"),
        out=(DOCS, "the folder of accuracy.json, .md and .png"),
    )
    cache = Cache(given.out / "accuracy.json")
    for pattern in given.only or ():
        if not any(is_wanted(name, [pattern]) for name in METHODS):
            refuse(f"--only {pattern}: known are {'; '.join(METHODS)}")
    every = list(dict.fromkeys(plan()))
    runs = [run for run in every if run.seed < given.seeds and is_wanted(run.method, given.only)]
    if given.list:
        for run, _ in pending(runs, METHODS, cache):
            print(run.key)
        return
    folder = data_folder()
    try:
        streams = load_streams(folder)
    except FileNotFoundError as error:
        refuse(f"STREAMFL_DATA={folder}: {error}")

    @lru_cache(maxsize=1)
    def deal(data: str, clients: int, samples: int, seed: int) -> Stream:
        inputs, labels, _ = streams.make(data, clients, samples, seed, folder)
        return Stream(inputs.swapaxes(0, 1), labels.T)

    measure(runs, METHODS, cache, deal, lambda text: print(text, flush=True))
    due = [run for run, _ in pending(every, METHODS, cache)]
    fill_in(given.out / "accuracy.md", {**tables(cache), "state": state(due, cache)})
    picture(cache, given.out / "accuracy.png")


if __name__ == "__main__":
    main()
