"""A temporarily full disk, under real processes on one SQLite file."""

from __future__ import annotations

import resource
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import closing
from pathlib import Path

from broker import free_ports
from sqlite_federation import CLIENTS, SqliteFederation

UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def test_a_disk_that_is_full_for_a_while_loses_nothing(tmp_path: Path) -> None:
    """Protects a site with a full disk: its workers are not ready while nothing can be written, and go on by
    themselves once there is room. Every sample is predicted once and every update is in the model.

    A limit of the operating system stops the processes' files from growing; the test's own files have no
    limit.
    """
    (port,) = free_ports(1)
    with closing(SqliteFederation(tmp_path)) as federation:
        federation.more["client-0"] = {"STREAMFL_METRICS__PORT": str(port)}
        for who in ("client-0", "server-0"):
            federation.run(who)
        before = federation.work()
        processes = list(federation.processes.values())
        for process in processes:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        federation.write()
        federation.wait(lambda: not is_ready(port))
        stuck = len(federation.predicted())
        time.sleep(1.0)
        assert len(federation.predicted()) == stuck < CLIENTS * federation.written
        for process in processes:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, UNLIMITED)
        after = federation.finish()
        federation.wait(lambda: is_ready(port))
        assert after > before
        assert [sample for sample, count in Counter(federation.predicted()).items() if count > 1] == []
