"""Starts many workers with one settings file, which poll their cluster more often than usual: ``python
forked.py CONFIG COUNT SECONDS``.

They are forks of one process that has loaded everything, so that twenty of them can start on a busy machine.
A worker that could not connect is started again, as a supervisor does. For every other one that ends, a line
on stdout has its number and exit code, which is below 0 for a signal.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from pathlib import Path

import confluent_kafka  # noqa: F401

import streamfl.cli.run
import streamfl.runtime.cluster_watch
from streamfl.cli import main
from streamfl.cli.preflight import read_configuration
from streamfl.terminal.exit_codes import ExitCode


def _work(number: int, configuration: Path) -> None:
    log = os.open(configuration.with_suffix(f".{number}.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, sys.stderr.fileno())
    sys.argv = ["streamfl", "run", str(configuration)]
    main()


def _watch(count: int, configuration: Path) -> None:
    workers: dict[int, int] = {}
    begun = list(range(count))
    while begun or workers:
        for number in begun:
            child = os.fork()
            if child == 0:
                _work(number, configuration)
                return
            workers[child] = number
        child, status = os.wait()
        number, code = workers.pop(child), os.waitstatus_to_exitcode(status)
        # On a busy machine a broker may not answer in time at the start.
        begun = [number] if code == ExitCode.BUS_UNAVAILABLE else []
        if not begun:
            print(number, code, flush=True)


if __name__ == "__main__":
    # A worker that hangs is asked where. What it answers goes to its log.
    faulthandler.register(signal.SIGUSR1)
    path = Path(sys.argv[1])
    streamfl.runtime.cluster_watch.EVERY_SECONDS = float(sys.argv[3])
    # Loads the role's module.
    read_configuration(path)
    _watch(int(sys.argv[2]), path)
