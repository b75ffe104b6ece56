"""Runs members of a federation in one process, with the release that is on the Python path.

It is a script. Its argument is the number of seconds that its clock is late. It reads one command a line from
standard input: ``start FILE`` runs the member of a settings file; ``stop FILE`` lets it finish its batch and
leave its group; ``die N`` ends the process like ``kill -9`` when its members have been busy N times. It
answers each line on standard output. At the end of the input all members leave. It only uses functions that
every release has.
"""

from __future__ import annotations

import math
import os
import queue
import signal
import sys
import threading
import time
from importlib import import_module
from pathlib import Path

from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.sqlite_bus import SqliteBus
from streamfl.runtime.worker import Worker

try:
    settings_module = import_module("streamfl.configuration.settings")
    role_module = import_module("streamfl.contract.role")
except ModuleNotFoundError:
    # Where 0.1 has them.
    settings_module = import_module("streamfl.settings")
    role_module = import_module("streamfl.role")
load_kind, load_settings = settings_module.load_kind, settings_module.load_settings
ConfigurationError: type[Exception] = role_module.ConfigurationError

CONFIGURATION = 2
IDLE_SECONDS = 0.02


def main(late: float) -> int:
    """Exit code: 0 at the end of the input, 2 if a member refuses its settings or its state."""
    told: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(told,), daemon=True).start()
    workers: dict[str, Worker] = {}
    left = math.inf
    try:
        while True:
            while not told.empty():
                command, _, path = (line := told.get().strip()).partition(" ")
                if command == "end":
                    return 0
                if command == "start":
                    workers[path] = _start(Path(path), late)
                elif command == "stop":
                    workers.pop(path).close()
                else:
                    left = int(path)
                print(line, flush=True)
            busy = sum(worker.step(0.0) for worker in workers.values())
            left -= busy
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            if not busy:
                time.sleep(IDLE_SECONDS)
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        return CONFIGURATION
    finally:
        for worker in workers.values():
            worker.close()


def _listen(told: queue.Queue[str]) -> None:
    for line in sys.stdin:
        told.put(line)
    told.put("end")


def _start(path: Path, late: float) -> Worker:
    def clock() -> float:
        return time.time() - late

    settings = load_settings(path, find_kind(load_kind(path)).settings)
    return build_worker(settings, SqliteBus(settings.bus.url, settings.bus.options, clock), clock)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
