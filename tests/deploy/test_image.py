"""The image: its Dockerfile, its lock, and the steps that need no download (`make check-deploy` runs all of
them)."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker import free_ports
from image import DOCKERFILE, ROOT, Image, build, stages
from packaging.requirements import Requirement

DEPLOY = ROOT / "deploy"
EXTRAS = ("librdkafka", "avro", "json-schema", "protobuf", "paillier", "tracing")


def pins() -> dict[str, list[str]]:
    """The locked versions by name; several if they depend on the Python version."""
    found: dict[str, list[str]] = {}
    for name, version in re.findall(
        r"^([a-z0-9-]+)==(\S+)", (DEPLOY / "requirements.txt").read_text(), re.MULTILINE
    ):
        found.setdefault(name, []).append(version)
    return found


@pytest.fixture(scope="module", name="image")
def _image() -> Iterator[Image]:
    # Not pytest's own folder, which only its owner may enter.
    folder = Path(tempfile.mkdtemp(prefix="streamfl-image-"))
    yield build(folder, locked=False)
    shutil.rmtree(folder)


def test_hadolint_has_nothing_to_say() -> None:
    """Protects the build: hadolint knows a hundred ways in which a Dockerfile becomes slow, unsafe or
    irreproducible."""
    program = Path(sys.executable).with_name("hadolint")
    said = subprocess.run(
        [program, "--failure-threshold", "style", DOCKERFILE], capture_output=True, text=True
    )
    assert said.returncode == 0, said.stdout + said.stderr


def test_every_base_is_pinned_by_digest() -> None:
    """Protects later builds: a tag may move to other bytes, a digest cannot."""
    given = re.findall(r"^ARG PYTHON=(\S+)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert len(given) == 1
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}", given[0])
    assert [stage[0][1].split(" ")[0] for stage in stages()] == ["${PYTHON}"] * 2


def test_the_lock_has_what_the_project_asks_for() -> None:
    """Protects the image from an outdated lock: a new dependency, or a new bound, needs `make lock`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [
        *project["dependencies"],
        *(one for extra in EXTRAS for one in project["optional-dependencies"][extra]),
    ]
    for requirement in map(Requirement, asked):
        locked = pins().get(requirement.name, [])
        assert locked, requirement.name
        assert all(requirement.specifier.contains(version) for version in locked), (requirement, locked)
    commands = [
        line for line in (ROOT / "Makefile").read_text().splitlines() if " pyproject.toml -o deploy/" in line
    ]
    assert set(re.findall(r"--extra (\S+)", "".join(commands))) == set(EXTRAS)


def test_no_worker_is_given_what_only_pictures_need() -> None:
    """Protects the size of the image: matplotlib and its dependencies are 60 MB that no worker loads."""
    assert not {"matplotlib", "pillow", "fonttools", "torch", "scikit-learn", "pytest"} & set(pins())


def test_everything_locked_has_hashes() -> None:
    """Protects the image from another package under a known name and version."""
    for name in ("requirements.txt", "requirements-build.txt"):
        entries = re.split(r"\n(?=[a-z])", (DEPLOY / name).read_text())[1:]
        assert entries
        for entry in entries:
            assert "--hash=sha256:" in entry, entry.splitlines()[0]
    assert "--require-hashes --only-binary :all: -r requirements.txt" in " ".join(
        rest for _, rest in stages()[0]
    )


def test_port_is_the_same_everywhere() -> None:
    """Protects the health check: it uses the port that the image exposes and sets for the worker."""
    final = dict(stages()[-1])
    port = final["EXPOSE"]
    assert f"STREAMFL_METRICS__PORT={port}" in final["ENV"]
    assert f"http://127.0.0.1:{port}/readyz" in final["HEALTHCHECK"]
    # The health check would work with less, but nobody else could scrape.
    assert "STREAMFL_METRICS__HOST=0.0.0.0" in final["ENV"].split()


def test_the_steps_make_a_worker_that_needs_no_right(image: Image) -> None:
    """Protects the first start: every file is copied, no folder has to be writable, and signals arrive."""
    assert not (image.tree / "bin" / "pip").exists()
    shown = "import streamfl, streamfl_connectors as c; print(streamfl.__file__, c.__file__)"
    where = image.run("python", "-c", shown, within=True)
    assert where.communicate()[0].count(f"{image.tree}/lib") == 2
    assert not list(image.tree.glob("lib/python*/site-packages/streamfl/testing"))
    more = {"STREAMFL_BUS__URL": f"sqlite://{image.data}/bus.db"}
    configuration = DEPLOY / "server.toml"
    made = image.run("topics", str(configuration), "--create", more=more)
    said = made.communicate()[0]
    assert made.returncode == 0, said
    [port] = free_ports(1)
    with image.worker(configuration, port, more) as (process, _):
        status = Path(f"/proc/{process.pid}/status").read_text()
        if not os.geteuid():
            assert re.search(r"^Uid:\s+10001\s+10001\s", status, re.MULTILINE)
            assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
        checked = image.run(*image.health_check(port), within=True)
        assert (checked.communicate()[0], checked.returncode) == ("", 0)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert "Traceback" not in said


@pytest.mark.skipif(bool(os.geteuid()), reason="mounts are root's")
def test_nothing_can_be_written_in_the_tree(image: Image) -> None:
    """Protects the test above: the program really runs as another user, on a read-only root file system."""
    tried = image.run(
        "sh",
        "-c",
        f"id -u; touch {image.tree}/x; touch /etc/x; touch {image.data}/x && echo data",
        within=True,
    )
    said = tried.communicate()[0]
    assert said.splitlines()[0] == "10001"
    assert said.count("Read-only file system") == 2
    assert "data" in said.splitlines()
