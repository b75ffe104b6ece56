"""``streamfl init`` for a party."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from command_line import run_command

from streamfl.contract.channels import TopicSpec
from streamfl.runtime.bus import Outgoing, connect

FILES = (
    "window.rows=300",
    "bounds.centre=0",
    "bounds.bound=1",
    "bounds.label_centre=0",
    "bounds.label_bound=8",
    "privacy.ledger=ward",
    "privacy.secret_file=own.key",
    "privacy.ledger_file=own.ledger",
)


@pytest.mark.parametrize("given", [("window.rows=300", "bounds.label_bound=8"), (), FILES])
def test_what_set_leaves_to_be_filled_in_is_no_mistake_of_it(
    given: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Protects who gives some keys on the command line: the ledger's file is made from the settings' file, so
    it is not there before. And who names files that are made later."""
    url = f"sqlite:///{tmp_path}/bus"
    with closing(connect(url, {})) as bus:
        for topic, value in (("wards", b'{"age": 7, "weight": 1.5}'), ("stays", b'{"days": 3}')):
            bus.create([TopicSpec(topic, 1, compacted=False)])
            bus.write([Outgoing(topic, b"patient-%d" % number, value) for number in range(20)])
    config = tmp_path / "party.toml"
    settings = ("privacy.epsilon=1", "privacy.delta=1e-6", "learning.columns=2", *given)
    code, shown, error = run_command(
        monkeypatch,
        capsys,
        *("init", config, "--role", "dp-frank-wolfe-party", "--url", url, "--from-topic", "wards"),
        *("--labels-topic", "stays", "--label", "days", "--parties", "ward,home", "--party", "ward"),
        *("--set", "federation.columns={ward = 2, home = 1}"),
        *(part for one in settings for part in ("--set", one)),
    )
    assert code == 0, error
    assert "privacy.ledger_file" in shown + error
    assert ('ledger_file = "own.ledger"' if given == FILES else "# ledger_file =") in config.read_text()
    assert ("Before it runs: privacy." in shown + error) == (given == FILES)
    assert "epsilon = 1" in config.read_text()


def test_a_field_that_names_the_entity_is_to_be_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects who begins with a file, whose records have no key: `init` asked for the field with the name,
    and wrote a setting that the role refuses."""
    (tmp_path / "wards.jsonl").write_text(
        "".join(f'{{"patient": "p{number}", "age": {number % 7}.5}}\n' for number in range(20))
    )
    config = tmp_path / "party.toml"
    code, _, error = run_command(
        monkeypatch,
        capsys,
        *("init", config, "--role", "dp-frank-wolfe-party", "--url", f"sqlite:///{tmp_path}/bus"),
        *("--federation", "f", "--from-file", tmp_path / "wards.jsonl", "--entity", "patient"),
    )
    assert code == 0, error
    written = config.read_text()
    assert "entity =" not in written
    assert "streamfl write CONFIG samples --key patient" in written
    assert 'features = ["age"]' in written
