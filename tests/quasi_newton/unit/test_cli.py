"""``streamfl keys``: from nothing to a key that every member pins, to the next one, and to the old one's
end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import run_command

from streamfl.quasi_newton.encryption import bignum, key_file
from streamfl.quasi_newton.encryption.key_file import make_key_file, read_key_file
from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey


class Line:
    """The command line in this process, and the path of a key file."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self.path = folder / "paillier.json"
        self._monkeypatch, self._capture = monkeypatch, capture

    def __call__(self, command: str, *arguments: object) -> tuple[int, str, str]:
        return run_command(self._monkeypatch, self._capture, "keys", command, self.path, *arguments)

    def primes(self) -> list[str]:
        """All that is secret, as a leak would show it."""
        found = [int(prime) for key in read_key_file(self.path) for prime in (key.p, key.q)]
        return [text for prime in found for text in (f"{prime:x}", f"{prime}")]


@pytest.fixture(name="line")
def _line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Line:
    return Line(tmp_path, monkeypatch, capsys)


def test_a_key_is_made_and_only_its_fingerprint_is_printed(line: Line) -> None:
    """Protects the first step of every federation: the file is the coordinator's alone, and what is copied is
    on stdout, alone."""
    code, out, said = line("init")
    (key,) = read_key_file(line.path)
    assert (code, out) == (0, f"{key.public.fingerprint}\n")
    assert key.public.bits == 2048
    assert line.path.stat().st_mode & 0o777 == 0o600
    assert "encryption.key_fingerprint" in said
    assert f'encryption.key_file = "{line.path}"' in said
    assert "key_bits" not in said
    assert not any(secret[:12] in out + said for secret in line.primes())


def test_another_length_is_told_as_the_setting_that_it_needs(line: Line) -> None:
    """Protects members from a start that fails for want of `encryption.key_bits`, the command from a length
    that none has, and a running federation from a command that is given twice."""
    assert line("show")[0] == 2
    code, _, said = line("init", "--bits", 520)
    assert (code, "a multiple of 16 is expected" in said) == (2, True)
    code, _, said = line("init", "--bits", 528)
    assert (code, "encryption.key_bits = 528" in said) == (0, True)
    before = line.path.read_bytes()
    code, out, said = line("init", "--bits", 512)
    assert (code, out, "is not overwritten" in said) == (2, "", True)
    assert line.path.read_bytes() == before
    code, _, said = line("rotate", "--bits", 512)
    assert (code, "encryption.key_bits = 512" in said) == (0, True)
    assert [key.public.bits for key in read_key_file(line.path)] == [512, 528]
    line.path.chmod(0o644)
    code, out, said = line("show")
    assert (code, out, "other users may read or write it" in said) == (2, "", True)


def test_a_rotation_puts_a_key_of_the_same_length_in_front_and_says_what_follows(line: Line) -> None:
    """Protects the change of a key: nothing is lost, and the operator knows the next steps in their order."""
    old = make_key_file(line.path, 512).public
    code, out, said = line("rotate")
    new, behind = (key.public for key in read_key_file(line.path))
    assert (code, out) == (0, f"{new.fingerprint}\n")
    assert (behind, new.bits) == (old, 512)
    assert "key_bits" not in said
    assert new != old
    removal = f"streamfl keys remove {line.path} --fingerprint {old.fingerprint}"
    steps = [said.index(text) for text in ("1. wait", "2. set encryption.key_fingerprint", removal)]
    assert steps == sorted(steps)
    assert not any(secret[:12] in out + said for secret in line.primes())


def test_a_new_key_with_a_factor_of_an_old_one_is_refused(
    line: Line, private: PaillierPrivateKey, other: PaillierPrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects both keys from a machine without entropy: whoever sees two moduli with a common factor has
    both keys."""
    drawn = iter([private, PaillierPrivateKey(private.p, other.q)])
    monkeypatch.setattr(key_file, "generate_key", lambda bits, entropy: next(drawn))
    make_key_file(line.path, 512)
    code, out, said = line("rotate")
    assert (code, out) == (2, "")
    assert "a factor in common" in said
    assert [key.public for key in read_key_file(line.path)] == [private.public]


@pytest.mark.parametrize("form", ["table", "json"])
def test_fingerprints_are_shown_and_no_secret_is(line: Line, form: str) -> None:
    """Protects the comparison over the telephone, and the key from whoever looks over a shoulder."""
    first = make_key_file(line.path, 512).public
    line("rotate")
    code, out, said = line("show", "--format", form)
    new = read_key_file(line.path)[0].public
    assert code == 0
    assert out.index(new.fingerprint) < out.index(first.fingerprint)
    if form == "json":
        content: dict[str, Any] = json.loads(out)
        assert content["keys"][1] == {"fingerprint": first.fingerprint, "bits": 512}
    assert not any(secret[:12] in out + said for secret in line.primes())


def test_an_old_key_is_removed_and_the_newest_is_not(line: Line) -> None:
    """Protects old messages once nobody needs their key, and the present ones from a slip of the hand."""
    old = make_key_file(line.path, 512).public
    line("rotate")
    new = read_key_file(line.path)[0].public
    for fingerprint, text in (
        (new.fingerprint, "is its newest key"),
        ("0" * 64, "has no key with fingerprint"),
    ):
        code, _, said = line("remove", "--fingerprint", fingerprint)
        assert code == 2
        assert text in said
    code, _, said = line("remove", "--fingerprint", old.fingerprint)
    assert code == 0
    assert "backups" in said
    assert [key.public for key in read_key_file(line.path)] == [new]
    assert line.path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in line.path.parent.iterdir()] == [line.path.name]


def test_who_lacks_the_extra_is_told_how_to_get_it(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects an operator from a traceback."""
    monkeypatch.setattr(bignum, "gmpy2", None)
    for command in ("init", "rotate", "show"):
        code, out, said = line(command)
        assert (code, out, "pip install 'streamfl[paillier]'" in said) == (2, "", True)
