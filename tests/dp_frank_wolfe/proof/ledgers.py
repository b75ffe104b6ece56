"""Secrets and ledger files of a simulation. What is random in them follows from its seed, so that a run can
be repeated."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from streamfl.privacy.anchor import FORMAT, IDENTITY_BYTES, Anchor

if TYPE_CHECKING:
    from dp_frank_wolfe.proof.scenario import DPFrankWolfeScenario

__all__ = ["anchor", "made_up_files", "made_up_ledger", "made_up_secret", "without_power_cuts"]

HEADER_BYTES = 512


def made_up_files(chosen: DPFrankWolfeScenario) -> None:
    """A secret and a ledger for each party, in the scenario's folder."""
    for party in chosen.parties:
        settings = chosen.of(party).privacy
        assert settings.ledger is not None
        made_up_ledger(Path(settings.ledger_file or ""), settings.ledger, party, chosen.seed)
        made_up_secret(Path(settings.secret_file or ""), chosen.secret(party))


def made_up_ledger(path: Path, ledger: str, party: str, seed: int = 0) -> None:
    """Makes an anchor with an identity that anybody can compute."""
    identity = hashlib.sha256(f"{seed} identity {ledger} {party}".encode()).digest()[:IDENTITY_BYTES].hex()
    header = {"format": FORMAT, "ledger": ledger, "party": party, "identity": identity}
    made_up_secret(path, msgspec.json.encode(header).ljust(HEADER_BYTES - 1) + b"\n")


def made_up_secret(path: Path, content: bytes) -> None:
    """Makes a file that nobody else may read."""
    path.write_bytes(content)
    path.chmod(0o600)


def anchor(chosen: DPFrankWolfeScenario, party: str) -> Anchor:
    """A party's ledger file."""
    settings = chosen.of(party).privacy
    assert settings.ledger is not None
    assert settings.ledger_file is not None
    return Anchor.open(settings.ledger_file, settings.ledger, party)


@contextmanager
def without_power_cuts() -> Iterator[None]:
    """Turns off fsync meanwhile, so that nothing waits for a disk."""
    sync = os.fsync
    setattr(os, "fsync", lambda file: None)  # noqa: B010
    try:
        yield
    finally:
        setattr(os, "fsync", sync)  # noqa: B010
