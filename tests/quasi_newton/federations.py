"""Small federations of roles, built from settings as an operator would write them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from streamfl.quasi_newton.config import COORDINATOR, GUEST, HOST, QuasiNewtonSettings
from streamfl.quasi_newton.encryption.key_file import make_key_file
from streamfl.quasi_newton.rows.preprocessing import EVIDENCE

LEARNING = {
    "batch": 100, "min_batch": 64, "min_support": 5, "memory": 3, "curvature_every": 2, "epochs": 4,
    "regularisation": 0.01,
}  # fmt: skip
ALIGNMENT = {"entities": 100, "settle_seconds": 5.0, "limit": 1000, "held_out": 0.0}


@dataclass(frozen=True)
class Secrets:
    """Files of a federation, in a folder of their own."""

    folder: Path

    def of(self, *names: str) -> str:
        """A file with a secret that follows from names."""
        path = self.folder / "-".join(names)
        if not path.exists():
            path.write_bytes(hashlib.sha256(repr(names).encode()).digest())
            path.chmod(0o600)
        return str(path)

    def keys(self, bits: int) -> tuple[str, str]:
        """The coordinator's file, and its key's fingerprint."""
        path = self.folder / f"keys-{bits}"
        if not path.exists():
            calls = iter(range(10**9))
            make_key_file(
                path, bits, lambda size: hashlib.shake_256(f"{bits} {next(calls)}".encode()).digest(size)
            )
        stored = msgspec.json.decode(path.read_bytes())
        return str(path), stored["keys"][0]["fingerprint"]


def settings_of(
    member: str,
    hosts: int,
    secrets: Secrets | None = None,
    bits: int = 512,
    columns: int = 3,
    **sections: dict[str, Any],
) -> QuasiNewtonSettings:
    """Of the guest "g", a host "h1", "h2" … or the coordinator "c". secrets: for encryption; None: plain.
    Nobody is scored unless ``scoring`` is given. Where the guest weighs evidence, for which it alone has
    labels, hosts standardise.
    """
    names = [f"h{number + 1}" for number in range(hosts)]
    kind = {"g": GUEST, "c": COORDINATOR}.get(member, HOST)
    encryption: dict[str, Any] = {"precision": "plain"}
    if secrets is not None:
        path, fingerprint = secrets.keys(bits)
        encryption = {"key_bits": bits, "key_fingerprint": fingerprint}
        if kind == COORDINATOR:
            encryption["key_file"] = path
        else:
            links = {name: secrets.of("link", name) for name in names}
            encryption |= {
                "secret_file": secrets.of(member),
                "link_secret_file": links if kind == GUEST else links[member],
            }
    content: dict[str, Any] = {
        "federation": {"name": "f", "parties": ["g", *names]},
        "role": {"kind": kind},
        "learning": {**LEARNING, **sections.pop("learning", {})},
        "alignment": {**ALIGNMENT, **sections.pop("alignment", {})},
        "encryption": {**encryption, **sections.pop("encryption", {})},
        "scoring": {"enabled": "scoring" in sections, **sections.pop("scoring", {})},
    }
    if kind != COORDINATOR:
        content["party"] = {"name": member}
        content["samples"] = {
            "topic": f"{member}-samples",
            "features": [f"x{number}" for number in range(columns)],
        }
    if kind == HOST and sections.get("preprocessing", {}).get("method") == EVIDENCE:
        sections = {**sections, "preprocessing": {"method": "standardise"}}
    if kind == GUEST:
        content["labels"] = {"topic": "labels", "label": "y"}
    return QuasiNewtonSettings.model_validate({**content, **sections})
