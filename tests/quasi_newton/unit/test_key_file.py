"""The file of private keys: nobody else reads it, damage is noticed, no key is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamfl.contract.role import ConfigurationError
from streamfl.quasi_newton.encryption import key_file
from streamfl.quasi_newton.encryption.key_file import add_key, make_key_file, read_key_file
from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    return tmp_path / "paillier.json"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_may_read_is_refused(path: Path, mode: int) -> None:
    """Protects the parties: such a key may be anybody's by now."""
    make_key_file(path, 512)
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match="other users may read or write it"):
        read_key_file(path)


def test_a_rotation_keeps_the_old_keys_behind_the_new_one(path: Path) -> None:
    """Protects what is on its way while keys change."""
    first = make_key_file(path, 512)
    (path.parent / (path.name + ".new")).write_text("of a rotation that was broken off")
    second = add_key(path, 512)
    assert [key.public for key in read_key_file(path)] == [second.public, first.public]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_rotation_that_fails_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the old keys from a full disk."""
    first = make_key_file(path, 512)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(key_file.os, "replace", full)
    with pytest.raises(ConfigurationError, match="No space left"):
        add_key(path, 512)
    assert [key.public for key in read_key_file(path)] == [first.public]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_file_holds_no_more_keys_than_it_may(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects reading: what a rotation wrote can be read."""
    monkeypatch.setattr(key_file, "MOST_KEYS", 1)
    make_key_file(path, 512)
    with pytest.raises(ConfigurationError, match="remove old ones first"):
        add_key(path, 512)


def swapped(content: dict[str, Any]) -> None:
    content["keys"][0]["p"], content["keys"][0]["fingerprint"] = content["keys"][0]["q"], "0" * 64


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "is no file": lambda content: content.pop("version"),
    "is no file of private": lambda content: content.update(keys=[]),
    "is no file of private Paillier": lambda content: content["keys"][0].update(
        p=content["keys"][0]["p"].upper() + "G"
    ),
    "primes are none": lambda content: content["keys"][0].update(p=content["keys"][0]["p"][:-1] + "1"),
    "key 1: its primes": swapped,
    "key 1: 512 bits, expected 1024": lambda content: content["keys"][0].update(bits=1024),
    "does not fit its own fingerprint": lambda content: content["keys"][0].update(fingerprint="0" * 64),
    "twice": lambda content: content["keys"].append(content["keys"][0]),
}


@pytest.mark.parametrize("text", DAMAGES)
def test_damage_is_noticed_and_not_shown(path: Path, text: str) -> None:
    """Protects the coordinator from decrypting to nonsense, and its log from the secret."""
    key = make_key_file(path, 512)
    content = json.loads(path.read_text())
    DAMAGES[text](content)
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match=text) as caught:
        read_key_file(path)
    assert f"{int(key.p):x}"[:12] not in str(caught.value)
    assert f"{int(key.q):x}"[:12] not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"\xff\xfe", b" " * 70_000])
def test_what_is_no_file_of_keys_is_refused(path: Path, content: bytes) -> None:
    """Protects the start of a process from a wrong path."""
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError):
        read_key_file(path)


def test_two_keys_of_a_file_with_a_common_factor_are_refused(
    path: Path, private: PaillierPrivateKey, other: PaillierPrivateKey
) -> None:
    """Protects both keys: a divisor of two moduli is found in microseconds."""
    if (private.p - 1) % 3 == 0 and (other.q - 1) % 3 == 0:
        pytest.fail("choose other keys for the tests")
    key_file._write_beside(path, [private, PaillierPrivateKey(private.p, other.q)])
    (path.parent / (path.name + ".new")).rename(path)
    with pytest.raises(ConfigurationError, match="in common with the key"):
        read_key_file(path)
