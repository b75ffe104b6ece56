"""``streamfl dashboards``: the files for an operator who only has the package."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_line import Command

from streamfl.contract.role import ConfigurationError
from streamfl.contract.system import System, installed_systems
from streamfl.monitoring import derived
from streamfl.monitoring.alerts import WORKER_ALERTS
from streamfl.monitoring.dashboard import Dashboard
from streamfl.monitoring.files import alert_files, dashboards_of
from streamfl.monitoring.service_health import DASHBOARD as HEALTH

ROOT = Path(__file__).parents[2]
BOARDS = {board.name: board for board in dashboards_of(installed_systems())}


def test_all_files_are_written(command: Command, tmp_path: Path) -> None:
    """Protects an operator's Grafana and Prometheus: the files equal the repository's, with each rule's
    runbook beside it."""
    code, shown, _ = command("dashboards", "--out", tmp_path / "new")
    assert (code, shown) == (0, "")
    there = {path.name for path in (tmp_path / "new").iterdir()}
    own = {path.name for path in (ROOT / "dashboards").iterdir()}
    assert own <= there
    for name in own:
        # In the repository the pages are elsewhere.
        expected = (ROOT / "dashboards" / name).read_text(encoding="utf-8").replace("docs/reference/", "")
        assert (tmp_path / "new" / name).read_text(encoding="utf-8") == expected
    rules = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "new").glob("*.yaml"))
    for page in (tmp_path / "new").glob("*.md"):
        assert f'"{page.name}#' in rules


def test_alerts_link_to_where_the_pages_are_published(command: Command, tmp_path: Path) -> None:
    """Protects the operator on call: Alertmanager's link leads to the page; without a URL there is no
    link."""
    for given, link in (
        ("https://wiki.example/a", "https://wiki.example/a/vafl.md#streamflpartysilent"),
        ("https://wiki.example/{page}.html", "https://wiki.example/vafl.html#streamflpartysilent"),
    ):
        code, _, _ = command("dashboards", "--out", tmp_path / "linked", "--force", "--runbooks", given)
        assert code == 0
        assert f'runbook_url: "{link}"' in (tmp_path / "linked" / "alerts-vafl.yaml").read_text(
            encoding="utf-8"
        )
    assert "runbook_url" not in "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "dashboards").glob("*.yaml")
    )
    code, _, told = command("dashboards", "--out", tmp_path / "none", "--runbooks", "wiki")
    assert code == 2
    assert "a URL is needed" in told
    assert not (tmp_path / "none").exists()


def test_one_is_printed_or_written(command: Command, tmp_path: Path) -> None:
    """Protects users who import a dashboard by hand: a name prints that one alone, and without a name all are
    listed."""
    code, shown, _ = command("dashboards", "health")
    assert (code, json.loads(shown)["uid"]) == (0, HEALTH.uid)
    code, _, told = command("dashboards", "health", "--out", tmp_path)
    assert code == 0
    assert "health.json" in told
    assert [path.name for path in tmp_path.iterdir()] == ["health.json"]
    code, shown, _ = command("dashboards")
    assert code == 0
    assert [line.split()[0] for line in shown.splitlines()] == [*BOARDS]


def test_what_cannot_be_done_is_told(command: Command, tmp_path: Path) -> None:
    """Protects against typing errors: the message lists the dashboards, or names the folder that cannot be
    written."""
    code, _, told = command("dashboards", "nobodys")
    assert code == 2
    assert all(name in told for name in BOARDS)
    (tmp_path / "file").write_text("")
    code, _, told = command("dashboards", "--out", tmp_path / "file")
    assert code == 2
    assert "cannot be written" in told


def test_edited_files_stay_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, command: Command, tmp_path: Path
) -> None:
    """Protects an operator's edited dashboard: a second run keeps files that differ and names them; --force
    overwrites them."""
    write = ("dashboards", "--out", tmp_path)
    assert [command(*write)[0] for _ in range(2)] == [0, 0]
    (tmp_path / "health.json").write_text("{}")
    (tmp_path / "alerts.yaml").unlink()
    code, _, told = command(*write)
    assert code == 2
    assert ("health.json says" in told, "--force" in told) == (True, True)
    assert ((tmp_path / "health.json").read_text(), (tmp_path / "alerts.yaml").exists()) == ("{}", False)
    assert command(*write, "--force")[0] == 0
    assert (tmp_path / "health.json").read_bytes() == (ROOT / "dashboards" / "health.json").read_bytes()
    monkeypatch.chdir(tmp_path / "..")
    before = sorted((tmp_path / "..").iterdir())
    code, _, told = command("dashboards", "--out", "")
    assert (code, "no name" in told) == (2, True)
    assert sorted((tmp_path / "..").iterdir()) == before


def test_others_dashboards_are_built_and_ours_need_no_builders(
    monkeypatch: pytest.MonkeyPatch, command: Command, tmp_path: Path
) -> None:
    """Protects an image without Grafana's builders: streamfl's dashboards are there; for another package it
    names what to install."""
    board = Dashboard("others", "others", "Others", "others", HEALTH.rows)
    system = System("others", "", ("others",), "a:b", dashboards="there:BOARDS")
    monkeypatch.setattr("streamfl.cli.dashboards.installed_systems", lambda: (system,))
    monkeypatch.setattr(derived, "load", lambda place: (board,))
    code, shown, _ = command("dashboards", "others")
    assert (code, json.loads(shown)["uid"]) == (0, "others")
    monkeypatch.delitem(sys.modules, "streamfl.monitoring.grafana", raising=False)
    monkeypatch.setitem(sys.modules, "grafana_foundation_sdk", None)
    for name in [name for name in sys.modules if name.startswith("grafana_foundation_sdk.")]:
        monkeypatch.setitem(sys.modules, name, None)
    code, _, told = command("dashboards", "others")
    assert code == 2
    assert "pip install 'streamfl[dashboards]'" in told
    code, shown, _ = command("dashboards", "health")
    assert (code, json.loads(shown)["uid"]) == (0, HEALTH.uid)


def test_dashboards_of_one_name_are_refused(
    monkeypatch: pytest.MonkeyPatch, command: Command, tmp_path: Path
) -> None:
    """Protects provisioning: of two dashboards with one uid, or with one file name, only one would exist."""
    system = System("others", "", ("others",), "a:b", dashboards="there:BOARDS")
    monkeypatch.setattr("streamfl.cli.dashboards.installed_systems", lambda: (system,))
    monkeypatch.setattr(
        derived, "load", lambda place: (Dashboard("health", "others", "Others", "others", HEALTH.rows),)
    )
    code, _, told = command("dashboards")
    assert code == 2
    assert "two dashboards have the name or uid health" in told


def test_a_system_has_no_page_of_every_workers_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the page that every worker's alerts link to: a system with its name would write over it."""
    monkeypatch.setattr(derived, "load", lambda place: WORKER_ALERTS)
    with pytest.raises(ConfigurationError, match="two pages have the name worker"):
        alert_files([System("worker", "", ("others",), "a:b", alerts="there:ALERTS")], "")
