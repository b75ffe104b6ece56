"""An upgrade one process after another, from an earlier release to this one, and a client's way back: real processes on a file."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from io import BytesIO
from pathlib import Path

import pytest
from sqlite_federation import SqliteFederation

ROOT = Path(__file__).parents[2]
# The last commit before issue 14. Move it on with a release: the step from one release to the next is what is tried.
BEFORE = "fb8ea6e"
EVERYBODY = ("server-0", "client-0", "client-1")


@pytest.fixture(name="before", scope="module")
def _before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The earlier release's code in a folder of its own."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no clone of the repository, so the earlier release's code is not here")
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", BEFORE, "streamfl", "connectors"], capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"this clone does not go back to {BEFORE}: fetch its whole history")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(name="federation")
def _federation(tmp_path: Path, before: Path) -> Iterator[SqliteFederation]:
    with closing(SqliteFederation(tmp_path, before, made_before=True)) as federation:
        yield federation


def test_a_federation_is_upgraded_one_process_after_another(federation: SqliteFederation) -> None:
    """Protects sites that cannot stop all at once: state and topics that the earlier release wrote are read, and processes of both
    work side by side, a new server with old clients, then clients of both kinds, then all new. Every sample is predicted once,
    every update is applied, and the model goes on from where it was.
    """
    for who in EVERYBODY:
        federation.run(who, old=True)
    versions = [federation.work()]
    for who in EVERYBODY:
        federation.run(who)
        versions.append(federation.work())
    check(federation, versions)


def test_a_client_can_go_back(federation: SqliteFederation) -> None:
    """Protects whoever finds out late that this release is not for them: an earlier client reads what this one remembered."""
    versions = []
    for old in (True, False):
        for who in EVERYBODY[:2]:
            federation.run(who, old)
        versions.append(federation.work())
    federation.run("client-0", old=True)
    versions.append(federation.work())
    check(federation, versions)


def check(federation: SqliteFederation, versions: list[int]) -> None:
    assert versions == sorted(set(versions)), f"the model did not go on: {versions}"
    assert [sample for sample, count in Counter(federation.predicted()).items() if count > 1] == []
    assert not list(federation.bus.read("upgraded.dead-letters"))
