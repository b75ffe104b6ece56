"""A party's settings file and a bus in a file, for the command line in the tests' own process."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from command_line import run_command

from streamfl.configuration.settings import load_settings
from streamfl.contract.channels import TopicSpec
from streamfl.dp_frank_wolfe.config import PARTY, DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.privacy.ledger import PartyLedger
from streamfl.dp_frank_wolfe.roles import ROLES
from streamfl.roles.partitioned_role import Outbox
from streamfl.runtime.bus import Outgoing, connect
from streamfl.runtime.checksum import with_checksum

__all__ = ["TOPIC", "Place"]

TOPIC = "patients.ledger"


class Place:
    """A party's settings file, and a bus in a file with what its ledger remembers."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self.folder = folder
        self.file = folder / "ward.ledger"
        self._monkeypatch, self._capture = monkeypatch, capture
        secret = folder / "secret"
        secret.write_bytes(hashlib.sha256(b"ward").digest())
        secret.chmod(0o600)

    def config(self, kind: str = PARTY, **privacy: object) -> Path:
        path = self.folder / "ward.toml"
        given = {
            "epsilon": 2.0, "delta": 1e-4, "secret_file": f'"{self.folder}/secret"', "ledger": '"patients"',
            "ledger_file": f'"{self.file}"', **privacy,
        }  # fmt: skip
        lines = [
            f'bus.url = "sqlite:///{self.folder}/bus"',
            'federation = {name = "f", parties = ["ward", "lab"], columns = {ward = 2, lab = 2}}',
            f'role.kind = "{kind}"',
            "window.rows = 20",
            *(f"privacy.{key} = {value}" for key, value in given.items() if value is not None),
        ]
        if kind == PARTY:
            lines += ['party.name = "ward"', 'samples = {topic = "s", features = ["x", "y"]}']
            lines.append('labels = {topic = "t", label = "z"}')
        path.write_text("\n".join(lines) + "\n")
        return path

    def __call__(self, command: str, *arguments: object) -> tuple[int, str, str]:
        """``streamfl ledger``."""
        return self.line("ledger", command, *(arguments or (self.config(),)))

    def line(self, *words: object) -> tuple[int, str, str]:
        """``streamfl``."""
        return run_command(self._monkeypatch, self._capture, *words)

    def shown(self, code: int = 0) -> dict[str, Any]:
        ended, out, said = self("show", self.config(), "--format", "json")
        assert ended == code, said
        content: dict[str, Any] = json.loads(out)
        return content

    def ledger(self) -> tuple[PartyLedger, Outbox]:
        """The party's, as the role has it."""
        role: Any = ROLES[PARTY].build(load_settings(self.config(), DPFrankWolfeSettings))
        role.open(0)
        return role.task(0).ledger, role.task(0).outbox

    def release(self, *windows: int) -> list[Outgoing]:
        """Freeze windows and answer an ask in each, and return what is to be remembered of that."""
        ledger, outbox = self.ledger()
        for window in windows:
            for kind in ("frozen", "answers"):

                def then(link: int, head: bytes, window: int = window, kind: str = kind) -> None:
                    if kind == "frozen":
                        ledger.charge_fit([f"{window}-{row}" for row in range(20)])

                ledger.release(window, 0, kind, b"", b"", b"rows", then)
                for work, noted in outbox.take()[1]:
                    noted(work.function(work.content))
        return [with_checksum(TOPIC, 0, key, value) for key, value in ledger.changed_state()]

    def remember(self, records: list[Outgoing]) -> None:
        bus = connect(f"sqlite:///{self.folder}/bus")
        bus.create([TopicSpec(TOPIC, 1, compacted=True)])
        bus.write(records)
        bus.close()
