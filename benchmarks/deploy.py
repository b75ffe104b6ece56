"""What a role costs where it runs: the installed tree of the image, the time until it is ready, and its
memory at rest."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, size

ROOT = Path(__file__).resolve().parents[1]
ROLES = ("server", "client")
# Caches of the first rounds are full by then.
REST_SECONDS, TIMES = size(3.0, 0.0), size(3, 1)
# Of the image, or those of this Python, which takes no time.
LOCKED = size(True, False)


def measure() -> Iterator[Figure]:
    """The Dockerfile's steps without Docker, so without the base image; each role of deploy/ is on a bus of
    its own."""
    # How the image is built without Docker is known to the tests; they are not installed.
    sys.path.insert(0, str(ROOT / "tests"))
    from broker import free_ports
    from image import build

    folder = Path(tempfile.mkdtemp(prefix="streamfl-image-"))
    try:
        image = build(folder, locked=LOCKED)
        size = sum(path.lstat().st_size for path in image.tree.rglob("*") if path.is_file())
        yield Figure("installed tree of the image, without its base", size / 1e6, "MB", 450.0, at_most=True)
        for role in ROLES:
            configuration = ROOT / "deploy" / f"{role}.toml"
            more = {"STREAMFL_BUS__URL": f"sqlite://{image.data}/{role}.db"}
            made = image.run("topics", str(configuration), "--create-inputs", "--partitions", "4", more=more)
            if made.wait():
                raise RuntimeError(made.communicate()[0])
            taken = []
            for _ in range(TIMES):
                [port] = free_ports(1)
                with image.worker(configuration, port, more) as (process, seconds):
                    taken.append(seconds)
                    time.sleep(REST_SECONDS)
                    resident = _resident_bytes(process.pid)
            yield Figure(
                f"{role}: start until ready, the best of {TIMES}", min(taken), "s", 10.0, at_most=True
            )
            yield Figure(f"{role}: memory at rest", resident / 2**20, "MiB", 256.0, at_most=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _resident_bytes(process: int) -> int:
    """What Linux says that the process holds in memory."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
