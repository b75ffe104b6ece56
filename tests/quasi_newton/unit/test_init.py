"""``streamfl init`` for a guest, whose labels are classes."""

from __future__ import annotations

import json
import tomllib
from contextlib import closing
from pathlib import Path

import pytest
from command_line import run_command

from streamfl.contract.channels import TopicSpec
from streamfl.runtime.bus import Outgoing, connect


@pytest.mark.parametrize("kind", ["quasi-newton-guest", "vafl-coordinator"])
def test_no_loss_is_advised_that_the_system_lacks_or_has_already(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Protects who does what the file says: `run` refuses a key that the system does not have."""
    url = f"sqlite:///{tmp_path}/bus"
    with closing(connect(url, {})) as bus:
        bus.create([TopicSpec("outcomes", 1, compacted=False)])
        bus.write([Outgoing("outcomes", b"c%d" % n, b'{"paid": %d}' % (n % 2)) for n in range(40)])
    records = tmp_path / "accounts.jsonl"
    records.write_text("".join(json.dumps({"who": f"c{n}", "age": n * 7 % 40}) + "\n" for n in range(40)))
    config = tmp_path / "member.toml"
    code, _, error = run_command(
        monkeypatch,
        capsys,
        *("init", config, "--role", kind, "--from-file", records, "--url", url, "--entity", "who"),
        *("--label", "paid", "--labels-topic", "outcomes", "--parties", "bank,shop"),
        *(("--party", "bank") if kind == "quasi-newton-guest" else ("--set", "federation.embedding_size=1")),
    )
    assert code == 0, error
    text = config.read_text()
    assert "label_range" not in tomllib.loads(text)["labels"]
    assert "logistic" not in text
