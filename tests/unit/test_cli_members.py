"""``streamfl members``, and what ``check`` and ``run`` report about keys: from nothing to a federation with
keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Command

from streamfl.identity import read_key_file, read_members
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.memory_bus import MemoryBus

CONFIG = """
[federation]
name = "plant"
clients = 4
features = 1
members = "{folder}/members.toml"
[identity]
key_file = "{folder}/{key}.key"
[bus]
url = "memory://{bus}"
[role]
kind = "{kind}"
[samples]
topic = "readings"
client = "device"
features = ["x0"]
label = "y"
[learning]
staleness = "async"
features_per_kernel = 4
"""


@pytest.mark.parametrize("content", ["a = " + "[" * 5000, "a = 1" + "0" * 5000], ids=["nested", "digits"])
def test_no_file_ends_a_command_with_a_traceback(tmp_path: Path, command: Command, content: str) -> None:
    """Protects who gets a members' file or a configuration from others: whatever is in it, the file is named
    and no more."""
    file = tmp_path / "given.toml"
    file.write_text(content)
    for words in (("members", "list", file), ("check", file), ("run", file)):
        code, out, error = command(*words)
        assert (code, "given.toml: is no" in out + error) == (2, True), words


def test_no_name_of_a_file_ends_a_command_with_a_traceback(tmp_path: Path, command: Command) -> None:
    """Protects who mistakes a text for a name: a name that no file can have is told like that of a file that
    is not there."""
    name, lines = tmp_path / ("n" * 300), tmp_path / "lines.json"
    lines.write_text('{"device": "a", "x": 1, "y": 2}\n')
    key = ("--name", "a", "--public-key", "k", "--role", "pofmkl-client")
    commands: list[tuple[object, ...]] = [
        ("members", "add", name, *key, "--federation", "f"),
        ("members", "list", name),
        ("report", name),
        ("check", name),
        ("init", tmp_path / "new.toml", "--from-file", name, "--no-label"),
        ("init", name, "--from-file", lines, "--client", "device", "--label", "y"),
        ("members", "init", name),
    ]
    for words in commands:
        code, out, error = command(*words)
        assert code in (2, 5), words
        assert out + error, words


class Line:
    """The command line in this process, in a folder of the test."""

    def __init__(self, folder: Path, command: Command) -> None:
        self.folder = folder
        self.members = folder / "members.toml"
        self.bus = MemoryBus.at(f"memory://{folder.name}")
        self._command = command

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        return self._command(*arguments)

    def key(self, name: str) -> str:
        """A new key file, and its printed public key."""
        code, out, _ = self("members", "init", self.folder / f"{name}.key")
        assert code == 0
        return out.strip()

    def add(self, name: str, public_key: str, role: str, *more: object) -> tuple[int, str, str]:
        return self(
            "members", "add", self.members, "--name", name, "--public-key", public_key, "--role", role, *more
        )

    def config(self, key: str, kind: str = "pofmkl-client") -> Path:
        path = self.folder / f"{key}-{kind}.toml"
        path.write_text(CONFIG.format(folder=self.folder, key=key, kind=kind, bus=self.folder.name))
        return path

    def checked(self, config: Path) -> tuple[int, dict[str, Any]]:
        code, out, _ = self("check", config, "--format", "json")
        return code, {found["check"]: found for found in json.loads(out)["checks"]}


@pytest.fixture
def line(tmp_path: Path, command: Command) -> Line:
    return Line(tmp_path, command)


@pytest.fixture
def plant(line: Line) -> Line:
    """A federation with a server and a site."""
    assert line.add("server", line.key("server"), "pofmkl-server", "--federation", "plant")[0] == 0
    assert (
        line.add(
            "site-a", line.key("site-a"), "pofmkl-client", "--speaks-for", "press-*", "--speaks-for", "mill"
        )[0]
        == 0
    )
    return line


def test_five_commands_make_a_federation_with_keys(plant: Line) -> None:
    """Protects the first try: the commands in the documentation make members that are accepted, and check
    names them."""
    config = plant.config("site-a")
    for one in (config, plant.config("server", "pofmkl-server")):
        assert plant("topics", one, "--create-inputs")[0] == 0
    plant.bus.write([Outgoing("readings", b"press-1", b'{"device": "press-1", "x0": 1, "y": 0.5}')])
    code, found = plant.checked(config)
    assert code == 0, found
    assert found["identity"]["detail"] == "site-a may be pofmkl-client, and speaks for press-*, mill"
    assert plant.checked(plant.config("server", "pofmkl-server"))[0] == 0


def test_nothing_that_is_printed_is_secret(plant: Line) -> None:
    """Protects the private key from a terminal's history, a pipeline's log and the public file."""
    secret = (plant.folder / "site-a.key").read_text().splitlines()[2].partition(":")[2]
    said = [plant("members", "list", plant.members), plant("members", "rotate", plant.folder / "site-a.key")]
    said.append(plant("check", plant.config("site-a")))
    newer = (plant.folder / "site-a.key").read_text().splitlines()[2].partition(":")[2]
    for text in (*(part for one in said for part in one[1:]), plant.members.read_text()):
        assert secret not in text
        assert newer not in text


def test_check_says_which_clients_would_be_refused(plant: Line) -> None:
    """Protects a site that forgot a client: its updates would become dead letters while everything looks
    well."""
    config = plant.config("site-a")
    for one in (config, plant.config("server", "pofmkl-server")):
        plant("topics", one, "--create-inputs")
    records = [
        Outgoing("readings", name, b'{"device": "%s", "x0": 1, "y": 0.5}' % name)
        for name in (b"press-1", b"saw")
    ]
    plant.bus.write(records)
    code, found = plant.checked(config)
    assert code == 4
    assert "not_its_client: 'site-a' may not speak for 'saw'" in found["records of readings"]["detail"]
    assert "1 of 2" in found["records of readings"]["detail"]


def test_check_and_run_refuse_what_does_not_fit(plant: Line) -> None:
    """Protects against a start that cannot work: both commands end with exit code 2 and say what to do."""

    def refused(config: Path, *expected: str) -> None:
        assert plant("topics", config, "--create-inputs")[0] == 0
        for command in ("check", "run"):
            code, out, error = plant(command, config)
            assert code == 2, (command, out, error)
            for text in expected:
                assert text in out + error, (command, expected)

    key_file = plant.folder / "site-a.key"
    key_file.chmod(0o644)
    refused(plant.config("site-a"), "chmod 600")
    key_file.chmod(0o600)
    refused(plant.config("site-a", "pofmkl-server"), "may be pofmkl-client")
    stranger = plant.key("stranger")
    refused(plant.config("stranger"), stranger, "streamfl members add")
    refused(plant.config("nobody"), "cannot be read")
    plant("members", "revoke", plant.members, "--name", "site-a")
    refused(plant.config("site-a"), "revoked")
    plant("members", "revoke", plant.members, "--name", "server")
    refused(plant.config("site-a"), "revoked")
    other = plant.config("site-a")
    other.write_text(other.read_text().replace('name = "plant"', 'name = "plants"'))
    refused(other, "'plant'", "'plants'")


@pytest.mark.parametrize(
    ("left_out", "expected"), [("key_file", "identity.key_file"), ("members", "federation.members")]
)
def test_half_of_it_is_a_mistake(plant: Line, left_out: str, expected: str) -> None:
    """Protects operators who believe that keys are in use: only one of the two settings would check
    nobody."""
    config = plant.config("site-a")
    config.write_text(
        "".join(one for one in config.read_text().splitlines(True) if not one.startswith(left_out))
    )
    for command in ("check", "run", "topics"):
        code, out, error = plant(command, config)
        assert code == 2
        assert f"{expected} is missing" in out + error


def test_a_key_is_added_and_the_old_one_revoked(plant: Line) -> None:
    """Protects rotation: the new key comes first, both are valid until the old one is revoked, and no key is
    lost."""
    path = plant.folder / "site-a.key"
    (old,) = [key.public.text for key in read_key_file(path)]
    # A leftover of a rotation that was killed.
    path.with_name(path.name + ".new").write_text("half a line")
    code, out, _ = plant("members", "rotate", path)
    new = out.strip()
    assert code == 0
    assert [key.public.text for key in read_key_file(path)] == [new, old]
    assert not path.with_name(path.name + ".new").exists()
    assert path.stat().st_mode & 0o777 == 0o600
    code, _, error = plant("members", "add", plant.members, "--name", "site-a", "--public-key", new)
    assert (code, "to all others; then to site-a" in error) == (0, True)
    member = read_members(plant.members).named("site-a")
    assert member is not None
    assert (member.public_keys, member.revoked_keys) == ((new, old), ())
    assert plant("members", "revoke", plant.members, "--name", "site-a", "--public-key", old)[0] == 0
    member = read_members(plant.members).named("site-a")
    assert member is not None
    assert (member.public_keys, member.revoked_keys, member.revoked) == ((new,), (old,), False)
    code, out, _ = plant("members", "list", plant.members, "--format", "json")
    assert code == 0
    listed = {one["name"]: one for one in json.loads(out)["members"]}
    assert listed["site-a"] == {
        "name": "site-a",
        "revoked": False,
        "roles": ["pofmkl-client"],
        "speaks_for": ["press-*", "mill"],
        "public_keys": [new],
        "revoked_keys": [old],
    }


def test_a_simulation_needs_no_keys(plant: Line) -> None:
    """Protects the way to a deployment: the same configuration can be simulated, with all roles in one
    process."""
    generator = np.random.default_rng(0)
    data = plant.folder / "data.npz"
    np.savez(data, X=generator.normal(size=(20, 1)), y=generator.random(20))
    arguments = ("--data", data, "--clients", 2, "--rounds", 5, "--format", "json")
    code, out, error = plant("simulate", plant.config("site-a"), *arguments)
    assert code == 0, error
    assert json.loads(out)["samples"] == 10


def test_mistakes_leave_the_files_as_they_were(plant: Line) -> None:
    """Protects existing files: a refused command ends with exit code 2, without a traceback, and changes
    nothing."""
    before = {path: path.read_bytes() for path in plant.folder.iterdir()}
    (public,) = [key.public.text for key in read_key_file(plant.folder / "site-a.key")]
    fresh = "streamfl-public-1:" + "A" * 90
    role = ("--role", "pofmkl-client")

    def add(name: str, key: str, *more: object, file: Path = plant.members) -> tuple[object, ...]:
        return ("add", file, "--name", name, "--public-key", key, *more)

    commands: list[tuple[object, ...]] = [
        ("init", plant.folder / "site-a.key"),
        ("init", plant.folder / "missing" / "site-a.key"),
        ("rotate", plant.folder / "other.key"),
        ("rotate", plant.members),
        add("b", public, *role),
        add("b", fresh, *role),
        add("b", public),
        add("b", public, "--role", "cook"),
        add("site-a", public),
        add("site-a", public, *role),
        add("b b", public, *role),
        add("b", public, *role, "--federation", "other"),
        add("b", public, *role, file=plant.folder / "new.toml"),
        ("revoke", plant.members, "--name", "nobody"),
        ("revoke", plant.members, "--name", "server", "--public-key", public),
        ("list", plant.folder / "nothing.toml"),
        ("list", plant.folder / "site-a.key"),
    ]
    for arguments in commands:
        code, out, error = plant("members", *arguments)
        assert code == 2, arguments
        assert out == ""
        assert error.startswith("error: ")
    assert {path: path.read_bytes() for path in plant.folder.iterdir()} == before
