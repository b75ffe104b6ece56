"""``streamfl init`` writes no section that the role refuses."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from command_line import run_command

from streamfl.contract.system import installed_systems
from streamfl.runtime.kinds import find_kind

REFUSING = [
    name
    for system in installed_systems()
    for name in system.kinds
    if any(name not in kinds for kinds in find_kind(name).settings.needed_by.values())
]


@pytest.mark.parametrize("name", REFUSING)
def test_a_section_that_has_no_meaning_at_the_role_is_left_out(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects who follows "the same command with --role and another file": the file would be refused."""
    records, config = tmp_path / "accounts.csv", tmp_path / "member.toml"
    records.write_text("who,age,paid\n" + "".join(f"c{n},{7 * n % 31},{n % 2}\n" for n in range(40)))
    given = ("--entity", "who", "--label", "paid", "--parties", "bank,shop", "--party", "bank")
    command = ("init", config, "--role", name, "--from-file", records, "--url", "sqlite://loans.db")
    code, _, error = run_command(monkeypatch, capsys, *command, *given)
    assert code == 0, error
    written = tomllib.loads(config.read_text())
    refused = [section for section, kinds in find_kind(name).settings.needed_by.items() if name not in kinds]
    assert "samples" in refused or "labels" in refused
    assert not set(refused) & set(written)
    assert "has no meaning" not in config.read_text()
