"""Secrets and ledger files of a simulation: what is random in them follows from its seed, so that a run is one history."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from streamfl.privacy.anchor import FORMAT, IDENTITY_BYTES, Anchor

if TYPE_CHECKING:
    from streamfl.dp_frank_wolfe.lab.scenario import DPFrankWolfeScenario

__all__ = ["anchor", "made_up_files"]

HEADER_BYTES = 512


def made_up_files(chosen: DPFrankWolfeScenario) -> None:
    """A secret and a ledger for each party, in the scenario's folder."""
    for party in chosen.parties:
        settings = chosen.of(party).privacy
        assert settings.secret_file is not None
        assert settings.ledger_file is not None
        identity = hashlib.sha256(f"{chosen.seed} identity {party}".encode()).digest()[:IDENTITY_BYTES].hex()
        header = {"format": FORMAT, "ledger": settings.ledger, "party": party, "identity": identity}
        contents = {settings.secret_file: chosen.secret(party)}
        contents[settings.ledger_file] = msgspec.json.encode(header).ljust(HEADER_BYTES - 1) + b"\n"
        for path, content in contents.items():
            Path(path).write_bytes(content)
            Path(path).chmod(0o600)


def anchor(chosen: DPFrankWolfeScenario, party: str) -> Anchor:
    """A party's ledger file."""
    settings = chosen.of(party).privacy
    assert settings.ledger is not None
    assert settings.ledger_file is not None
    return Anchor.open(settings.ledger_file, settings.ledger, party)
