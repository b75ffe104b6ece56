"""The image's unchanged steps, including the download of everything in the lock file: a minute."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker import free_ports
from image import ROOT, Image, build, python_version

# Everything that a role, a connector or a format may load at work, and no system's tools.
LOADS = """
import importlib, importlib.metadata as metadata
from streamfl.contract.system import installed_systems
for system in installed_systems():
    importlib.import_module(system.roles.partition(":")[0])
    print(system.name)
for group in ("streamfl.connectors", "streamfl.formats", "streamfl.datasets"):
    for entry in metadata.entry_points(group=group):
        entry.load()
        print(entry.name)
import confluent_kafka, fastavro, gmpy2, google.protobuf, grpc_tools.protoc
import jsonschema_rs, opentelemetry.sdk.trace
"""


@pytest.fixture(scope="module", name="image")
def _image() -> Iterator[Image]:
    folder = Path(tempfile.mkdtemp(prefix="streamfl-image-"))
    yield build(folder, locked=True)
    shutil.rmtree(folder)


def test_everything_that_a_role_needs_is_in_it(image: Image) -> None:
    """Protects the start of every system: finds a package missing from the lock, or removed together with
    others' tests."""
    loaded = image.run("python", "-c", LOADS, within=True)
    said = loaded.communicate()[0]
    assert loaded.returncode == 0, said
    assert len(said.splitlines()) >= 5 + 4 + 7 + 1
    assert (image.tree / "lib" / f"python{python_version()}").is_dir(), "the image's Python is not here"
    assert not list(image.tree.glob("lib/python*/site-packages/matplotlib"))


def test_a_federation_learns_in_it(image: Image) -> None:
    """Protects the numbers: arrays, kernels and River's models work with the locked versions."""
    tried = image.run("demo", "--format", "json")
    said = tried.communicate()[0]
    assert tried.returncode == 0, said
    assert '"picture": null' in said or '"picture":null' in said


def test_a_worker_is_ready_in_it(image: Image) -> None:
    """Protects the first start with the image's versions."""
    more = {"STREAMFL_BUS__URL": f"sqlite://{image.data}/bus.db"}
    configuration = ROOT / "deploy" / "client.toml"
    made = image.run("topics", str(configuration), "--create-inputs", "--partitions", "1", more=more)
    said = made.communicate()[0]
    assert made.returncode == 0, said
    [port] = free_ports(1)
    with image.worker(configuration, port, more) as (process, seconds):
        assert seconds < 60
    assert process.returncode == 0
