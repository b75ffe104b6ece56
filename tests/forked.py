"""Many workers of one settings file, which look at their cluster more often than usual: ``python forked.py CONFIG COUNT SECONDS``.

They are forks of one process that has loaded all that they need, so that twenty of them start on a busy machine. A line on stdout
tells each that ends, with its number and its exit code, below 0 for a signal.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import confluent_kafka  # noqa: F401

import streamfl.cli.run
import streamfl.runtime.cluster_watch
from streamfl.cli import main
from streamfl.cli.preflight import read_configuration


def _work(number: int, configuration: Path) -> None:
    log = os.open(configuration.with_suffix(f".{number}.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, sys.stderr.fileno())
    sys.argv = ["streamfl", "run", str(configuration)]
    main()


def _watch(count: int, configuration: Path) -> None:
    workers: dict[int, int] = {}
    for number in range(count):
        child = os.fork()
        if child == 0:
            _work(number, configuration)
            return
        workers[child] = number
    while workers:
        child, status = os.wait()
        print(workers.pop(child), os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    streamfl.runtime.cluster_watch.EVERY_SECONDS = float(sys.argv[3])
    # Loads the role's module.
    read_configuration(path)
    _watch(int(sys.argv[2]), path)
