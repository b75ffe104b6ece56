"""A running worker notices changes of its key file and the members' file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from streamfl.identity import Member, Members, add_key, load_identity, make_key_file, write_members
from streamfl.pofmkl.config import PofmklSettings
from streamfl.runtime import identity_watch
from streamfl.runtime.health import Health
from streamfl.runtime.identity_watch import IdentityWatch


def test_files_are_read_again_and_a_wrong_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects a rotation without a restart. With a wrong file the worker is not ready and says why."""
    monkeypatch.setattr(identity_watch, "EVERY_SECONDS", 0.01)
    key_file, file = tmp_path / "server.key", tmp_path / "members.toml"
    old = make_key_file(key_file).public
    write_members(file, Members("plant", (Member("server", ("pofmkl-server",), (old.text,)),)))
    settings = PofmklSettings(
        federation={"name": "plant", "clients": 4, "members": str(file)},  # type: ignore[arg-type]
        role={"kind": "pofmkl-server"},  # type: ignore[arg-type]
        identity={"key_file": str(key_file)},  # type: ignore[arg-type]
    )
    health, identity = Health(), load_identity(settings)
    health.completed()
    assert identity is not None
    watch = IdentityWatch(settings, health)
    watch.start()
    new = add_key(key_file).public
    write_members(file, Members("plant", (Member("server", ("pofmkl-server",), (new.text, old.text)),)))
    until(lambda: identity.sign(b"a").startswith(new.identifier))
    assert health.reasons == {}
    good = file.read_bytes()
    for wrong in (
        b"no members' file",
        b'federation = "another"',
        good.replace(b"pofmkl-server", b"pofmkl-client"),
    ):
        replaced(file, wrong)
        until(lambda: "keys" in health.reasons)
        assert "members" in health.reasons["keys"]
        assert identity.sign(b"a").startswith(new.identifier)
        replaced(file, good)
        until(lambda: not health.reasons)
    real = identity_watch.renew_identities

    def fail(_: object) -> bool:
        raise RuntimeError("a fault of a library")

    monkeypatch.setattr(identity_watch, "renew_identities", fail)
    until(lambda: "a fault of a library" in health.reasons.get("keys", ""))
    monkeypatch.setattr(identity_watch, "renew_identities", real)
    until(lambda: not health.reasons)
    key_file.chmod(0o644)
    until(lambda: "other users may read" in health.reasons.get("keys", ""))
    watch.close()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def replaced(file: Path, content: bytes) -> None:
    beside = file.with_name("beside")
    beside.write_bytes(content)
    os.replace(beside, file)
