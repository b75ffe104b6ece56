"""Small federations of roles, built from settings as an operator would write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streamfl.dp_frank_wolfe.config import PARTY, SERVER, DPFrankWolfeSettings
from streamfl.privacy.anchor import Anchor

ROWS, COLUMNS = 30, 4
SERVER_MEMBER = "server"


def parties_of(parties: int) -> list[str]:
    return [f"party-{number}" for number in range(parties)]


def settings_of(
    member: str, parties: int = 2, folder: Path | None = None, **sections: dict[str, Any]
) -> DPFrankWolfeSettings:
    """Of the server, or of a party. folder: where ledger files and secrets are, with noise that nobody knows;
    None: with noise that everybody can compute.
    """
    names = parties_of(parties)
    privacy: dict[str, Any] = {"epsilon": 5.0, "delta": 1e-3, **sections.get("privacy", {})}
    content: dict[str, Any] = {
        "federation": {
            "name": "f",
            "parties": names,
            "columns": dict.fromkeys(names, COLUMNS),
            **sections.get("federation", {}),
        },
        "role": {"kind": SERVER if member == SERVER_MEMBER else PARTY},
        "window": {"rows": ROWS, "patience_seconds": 60.0, **sections.get("window", {})},
        "learning": {
            "estimator": "frank-wolfe",
            "columns": 4,
            "iterations": 6,
            "sketch_rows": 8,
            **sections.get("learning", {}),
        },
        "serving": sections.get("serving", {}),
        "bounds": sections.get("bounds", {}),
    }
    if folder is None:
        privacy.setdefault("insecure_test_noise", privacy["epsilon"] != float("inf"))
    elif member != SERVER_MEMBER:
        privacy["ledger"] = f"{privacy.get('ledger', 'data')}-{member}"
        privacy["ledger_file"] = str(folder / f"{member}-{privacy['ledger']}")
        privacy["secret_file"] = str(_secret(folder, member))
        if not Path(privacy["ledger_file"]).exists():
            Anchor.create(privacy["ledger_file"], privacy["ledger"], member)
    if member != SERVER_MEMBER:
        content["party"] = {"name": member}
        content["samples"] = {
            "topic": f"{member}-samples",
            "features": [f"x{number}" for number in range(COLUMNS)],
        }
        content["labels"] = {"topic": "labels", "label": "y", "label_range": [0.0, 1.0]}
    return DPFrankWolfeSettings.model_validate({**content, "privacy": privacy})


def _secret(folder: Path, member: str) -> Path:
    path = folder / f"{member}.secret"
    if not path.exists():
        path.touch(0o600)
        path.write_bytes(bytes((7 * number + len(member)) % 256 for number in range(64)))
    return path
