"""``streamfl init`` for the members of a vertical federation: what is missing is told with its option."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run_command

SHARED = ("--url", "sqlite://loans.db", "--entity", "who", "--parties", "bank,shop")


@pytest.mark.parametrize(
    ("kind", "option"),
    [("vafl-coordinator", "--labels-topic TOPIC --label FIELD"), ("vafl-party", "--party NAME")],
)
def test_a_section_that_is_missing_is_told_with_its_option(
    kind: str,
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Protects who follows "the same command with --role": the member reads something else, and the message
    says which option names it."""
    records = tmp_path / "accounts.jsonl"
    records.write_text(
        "".join(json.dumps({"who": f"c{n}", "age": n, "debts": n % 7}) + "\n" for n in range(40))
    )
    config = tmp_path / "member.toml"
    code, _, error = run_command(
        monkeypatch,
        capsys,
        *("init", config, "--role", kind, "--from-file", records, *SHARED),
        *("--set", "federation.embedding_size=1"),
    )
    assert (code, config.exists()) == (0, True)
    assert f"needs this section; say {option}" in error


def test_a_file_of_labels_alone_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects the coordinator's first try: records that have a label and nothing else are no samples, and
    the message says where labels are named."""
    records = tmp_path / "outcomes.jsonl"
    records.write_text("".join(json.dumps({"who": f"c{n}", "paid": n % 2}) + "\n" for n in range(40)))
    config = tmp_path / "coordinator.toml"
    code, _, error = run_command(
        monkeypatch,
        capsys,
        *("init", config, "--role", "vafl-coordinator", "--from-file", records, "--label", "paid", *SHARED),
    )
    assert (code, config.exists()) == (5, False)
    assert "no field can be an input: the records have no field beside" in error
    assert "--labels-topic" in error


def test_a_guest_without_labels_is_told_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects who names the label and not its topic: the file that lacks its labels says which option of
    `streamfl init` writes them."""
    records = tmp_path / "accounts.jsonl"
    rows = [{"who": f"c{n}", "age": n, "debts": n % 7, "paid": n % 2} for n in range(40)]
    records.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = tmp_path / "guest.toml"
    code, _, error = run_command(
        monkeypatch,
        capsys,
        *("init", config, "--role", "quasi-newton-guest", "--from-file", records, "--label", "paid"),
        *(*SHARED, "--party", "bank"),
    )
    assert code == 0, error
    assert "labels is missing: a quasi-newton-guest needs this section; say --labels-topic TOPIC" in error
