"""A federation on one SQLite file whose members may run different releases, with the load and the checks of
its soak.

    python tests/releases.py    # writes tests/<system>/before.tar.xz: data of the previous release, killed

A recording allows the test without the previous release's code: its data must still be readable. It is made
once a release."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from io import BytesIO
from pathlib import Path

import pytest
from distributions import distribution
from soak.configuration import all_topics, load_members
from soak.subject import FEDERATION, Left, Plan, Verdict, find_soaked, soaked_systems
from soak.verdict import check_inputs, judge_topics

from streamfl.contract.role import Record
from streamfl.runtime.sqlite_bus import SqliteBus

__all__ = ["BEFORE", "FIRST", "NOW", "Federation", "Release", "code_of", "later_release", "python_of"]

NOW = Path(__file__).parents[1]
# The last commit of 0.1. Change it at each release: the tests upgrade from one release to the next.
BEFORE = "76513d7"
DRIVER = NOW / "tests" / "release_driver.py"
SECONDS = 120.0
REST_SECONDS = 1.0
BUS = """
[bus]
url = "sqlite://{path}"
commit_interval_ms = 20
max_poll_records = 10
[bus.options]
session_timeout_seconds = 1
retention_hours = 1e9
"""
# Number of samples before the previous release is killed. Enough for a system that learns in trainings to
# begin one.
FIRST = 240
# Its processes are killed after this many steps. By then all systems are in the middle of the load.
STEPS = 30
TOLD = "told.json"


def code_of(commit: str, folder: Path) -> Path:
    """The unpacked code of a commit. The test is skipped if the repository or the commit is not available."""
    if shutil.which("git") is None or not (NOW / ".git").exists():
        pytest.skip("this is no clone of the repository, so the earlier release's code is not here")
    wanted = ("streamfl", "connectors", "pyproject.toml")
    packed = subprocess.run(
        ["git", "-C", str(NOW), "archive", commit, *wanted], capture_output=True, check=False
    )
    if packed.returncode:
        pytest.skip(f"this clone does not go back to {commit}: fetch its whole history")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    # In front of the installed one.
    distribution(folder, folder)
    return folder


def python_of(code: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command and the environment that run Python with a release's code and none of another.

    An editable install of this release would give the old one every module that it lacks. Without -S Python
    would find that install."""
    paths = [code, code / "connectors", sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "OPENBLAS_NUM_THREADS": "1",
    }
    # Without -P the script's folder would come first on the path.
    return [sys.executable, "-S", "-P", *arguments], environment


def later_release(folder: Path, changes: Mapping[str, tuple[str, str]]) -> Path:
    """This release's code in ``folder``, with changes. changes: by file, the old text and the new one."""
    for name, source in (("streamfl", NOW / "streamfl"), ("connectors", NOW / "connectors")):
        shutil.copytree(source, folder / name)
    for name, (old, new) in changes.items():
        # What Python has compiled of the other files is still right, and takes seconds to do again.
        for compiled in (folder / name).parent.glob(f"__pycache__/{Path(name).stem}.*"):
            compiled.unlink()
        text = (folder / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{name}: {old!r} is no longer there"
        (folder / name).write_text(text.replace(old, new), encoding="utf-8")
    return folder


class Release:
    """A process of one release, which runs the members that :meth:`start` names.

    code: a folder with the release's packages.
    late: seconds that its clock is late.
    """

    def __init__(self, code: Path, log: Path, late: float = 0.0) -> None:
        self._log = log
        command, environment = python_of(code, str(DRIVER), str(late))
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def start(self, member: Path) -> None:
        """Run the member of a settings file; it joins within its next step."""
        self._tell(f"start {member}")

    def stop(self, member: Path) -> None:
        """Let it finish its batch and leave."""
        self._tell(f"stop {member}")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        assert answer == line, f"{line}: {answer or self.said}"

    @property
    def ended(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Wait until it ends by itself. Returns its exit code."""
        return self._process.wait(SECONDS)

    @property
    def said(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-3000:]

    def die(self, steps: int) -> None:
        """Kill it when its members have been busy ``steps`` more times, and wait for that."""
        self._tell(f"die {steps}")
        assert self._process.wait(SECONDS) == -signal.SIGKILL, self.said

    def close(self) -> None:
        """Let all its members leave."""
        self._process.communicate()


class Federation:
    """The members of a system's soak, its load and its checks.

    recorded: whether it continues from the recording.
    late: seconds that its clock is late, so that nothing of the recording has expired.
    """

    def __init__(self, system: str, folder: Path, recorded: bool = False) -> None:
        self._folder = folder
        self._system = find_soaked(system)[1]
        self._plan = Plan(self._system.modes[0], "sqlite")
        bus = BUS.format(path=folder / "bus.db")
        self.files: dict[str, Path] = {}
        # Files besides the bus that the settings name.
        self._named: list[Path] = []
        for name, member in self._system.members(self._plan).items():
            self.files[name] = folder / f"{name}.toml"
            self.files[name].write_text(member.sections + bus)
            self._named += [Path(found) for found in re.findall(r'"(/[^"]+)"', member.sections)]
        self._settings = load_members(self.files)
        self._topics = all_topics(self._settings)
        self.written, self.late = self._unpack(recording(system)) if recorded else (0, 0.0)
        one = next(iter(self._settings.values()))
        self.bus = SqliteBus(one.bus.url, one.bus.options, lambda: time.time() - self.late)
        self.bus.create([spec for spec in self._topics.values() if not self.bus.describe([spec.name])])

    def begin(self, *releases: Release) -> None:
        """Write the records that come before the load, and wait until the load can begin."""
        self.bus.write(self._system.first(self._plan))
        self.wait(lambda: self._system.begun(self._left()), *releases)

    def write(self, count: int) -> None:
        """Write ``count`` more samples of the load."""
        numbers = range(self.written, self.written + count)
        self.bus.write([record for number in numbers for record in self._system.records(self._plan, number)])
        self.written += count

    def predicted(self) -> set[str]:
        """The samples that have a prediction."""
        return {
            self._system.predicted(json.loads(one.value or b""))
            for one in self.bus.read(f"{FEDERATION}.predictions")
        }

    def wait(self, done: Callable[[], bool], *releases: Release) -> None:
        """Wait for a condition. The releases have to stay alive."""
        deadline = time.monotonic() + SECONDS
        while not done():
            for one in releases:
                assert one.ended is None, f"ended with {one.ended}: {one.said}"
            assert time.monotonic() < deadline, (
                f"{len(self.predicted())} of {self.written} predicted: {releases[0].said}"
            )
            time.sleep(0.05)

    def finish(self, *releases: Release) -> None:
        """Wait until all written samples are predicted. The releases have to stay alive."""
        self.wait(lambda: len(self.predicted()) >= self.written, *releases)

    def rest(self, *releases: Release) -> None:
        """Wait until nothing has been written for a while, so that everything that follows from the last
        samples is there."""
        seen: dict[str, int] = {}
        since = time.monotonic()

        def rests() -> bool:
            nonlocal seen, since
            counts = {name: sum(1 for _ in self.bus.read(name)) for name in self._topics}
            if counts != seen:
                seen, since = counts, time.monotonic()
            return time.monotonic() - since > REST_SECONDS

        self.wait(rests, *releases)

    def refused(self) -> list[Record]:
        topics = {settings.dead_letters for settings in self._settings.values()}
        return [letter for topic in sorted(topics) for letter in self.bus.read(topic)]

    def contents(self) -> dict[str, list[Record]]:
        """The records of every topic."""
        return self._left().topics

    def verdict(self) -> Verdict:
        """The failed checks, judged by all records in the topics."""
        left = self._left()
        verdict = judge_topics(self._system, left)
        check_inputs(verdict, self._system, left, self.written)
        return verdict

    def close(self) -> None:
        self.bus.close()

    def pack(self, path: Path) -> None:
        """Record the bus and the files that settings name, when no process runs any more."""
        self.bus.close()
        bus = self._folder / "bus.db"
        with closing(sqlite3.connect(bus)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("VACUUM")
        told = self._folder / TOLD
        told.write_text(json.dumps({"written": self.written, "time": time.time()}))
        with tarfile.open(path, "w:xz", preset=9) as archive:
            for one in (bus, told, *self._named):
                archive.add(one, one.name, filter=_nobodys)

    def _unpack(self, path: Path) -> tuple[int, float]:
        with tarfile.open(path) as archive:
            archive.extractall(self._folder, filter="data")
        for one in self._named:
            shutil.copy(self._folder / one.name, one)
        told = json.loads((self._folder / TOLD).read_text())
        return told["written"], time.time() - told["time"]

    def _left(self) -> Left:
        return Left(self._plan, self._settings, {name: list(self.bus.read(name)) for name in self._topics})


def recording(system: str) -> Path:
    """The path of a system's recording."""
    return NOW / "tests" / system.replace("-", "_") / "before.tar.xz"


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        code = code_of(BEFORE, Path(made, "before"))
        for system in soaked_systems():
            folder = Path(made, system)
            folder.mkdir()
            federation = Federation(system, folder)
            old = Release(code, folder / "log.txt")
            for member in federation.files.values():
                old.start(member)
            federation.begin(old)
            federation.write(FIRST)
            old.die(STEPS)
            count = len(federation.predicted())
            federation.pack(recording(system))
            print(f"{system}: {count} of {FIRST} predicted, {recording(system).stat().st_size} bytes")


if __name__ == "__main__":
    main()
