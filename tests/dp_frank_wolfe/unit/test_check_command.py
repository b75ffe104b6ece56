"""``streamfl topics`` and ``streamfl check`` of a party and a server: rights, cautions, and a ledger that is
only looked at."""

from __future__ import annotations

import json
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from dp_frank_wolfe.command_place import TOPIC, Place

from streamfl.configuration.settings import load_settings
from streamfl.dp_frank_wolfe.config import SERVER, DPFrankWolfeSettings
from streamfl.runtime.bus import Outgoing, connect

SERVER_ONLY: dict[str, Any] = {"kind": SERVER, "secret_file": None, "ledger": None, "ledger_file": None}


@pytest.fixture(name="place")
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, monkeypatch, capsys)


def told(place: Place, command: str, *arguments: object, code: int = 0, **privacy: Any) -> dict[str, Any]:
    ended, out, said = place.line(command, place.config(**privacy), "--format", "json", *arguments)
    assert ended == code, out + said
    content: dict[str, Any] = json.loads(out)
    return content


def test_rights_keep_the_server_from_rows_and_strangers_from_ledgers(place: Place) -> None:
    """Protects plain rows, labels and ledgers: no right of the server is on them, and whoever grants one is
    told what they hold."""
    place("init")
    party, server = told(place, "topics", "--create-inputs"), told(place, "topics", **SERVER_ONLY, code=4)
    read = {right["name"] for right in server["acls"] if right["resource"] == "topic"}
    assert {"f.ward.releases", "f.ward.asks", "f.model"} <= read
    assert not read & {"s", "t", TOPIC, "f.ward.state", "f.ward.dead-letters"}
    rights = {
        right["name"]: set(right["operations"]) for right in party["acls"] if right["resource"] == "topic"
    }
    assert {name for name, operations in rights.items() if "Write" in operations} == {
        "f.ward.releases", "f.ward.state", "f.ward.dead-letters", TOPIC,
    }  # fmt: skip
    assert party["cautions"].keys() == {"s", "t", "f.ward.state", TOPIC}
    assert "never delete it" in party["cautions"][TOPIC]
    exact = place.config()
    exact.write_text(exact.read_text() + 'serving.mode = "exact"\n')
    cautions = json.loads(place.line("topics", exact, "--format", "json")[1])["cautions"]
    assert "solve for the party's columns" in cautions["f.ward.releases"]


def write(place: Place, rows: dict[int, dict[str, float]], label: float) -> None:
    with closing(connect(load_settings(place.config(), DPFrankWolfeSettings).bus.url)) as bus:
        for row, values in rows.items():
            bus.write([Outgoing("s", b"p%d" % row, msgspec.json.encode(values))])
            bus.write([Outgoing("t", b"p%d" % row, msgspec.json.encode({"z": label}))])


def test_a_check_releases_and_notes_nothing(place: Place) -> None:
    """Protects the ledger from a look at it: rows are there to be taken, and the file stays as it is."""
    place("init")
    told(place, "topics", "--create-inputs")
    write(place, {row: {"x": 0.5, "y": 0.5 if row else math.nan} for row in range(20)}, 0.25)
    before = place.file.read_bytes()
    found = told(place, "check")
    assert found["ok"]
    assert place.file.read_bytes() == before
    # What cannot be read of a row is nobody's business, its operator's log included. If all are so, the
    # settings are wrong.
    [rows] = [one["detail"] for one in found["checks"] if one["check"] == "records of s"]
    assert rows == "20 of 20 records readable"


def test_a_column_whose_values_are_all_clipped_is_told_before_the_budget_is_spent(place: Place) -> None:
    """Protects budgets of a life from settings that forgot the bounds: every value of x and every label would
    count as 1, and nothing else would tell, because no worker may. One value of y within is enough."""
    place("init")
    told(place, "topics", "--create-inputs")
    write(place, {row: {"x": 40 + row, "y": 0.5 if row == 7 else 40} for row in range(20)}, 12)
    checks = {one["check"]: one for one in told(place, "check", code=4)["checks"]}
    rows, labels = checks["records of s"], checks["records of t"]
    assert not rows["passed"]
    assert not labels["passed"]
    assert "20 times, the first s-0-0 out_of_bounds: 'x' = 40" in rows["detail"]
    assert "'y'" not in rows["detail"]
    assert "bounds.label_bound" in labels["detail"]


def test_an_entity_that_cannot_be_forgotten_is_not_said_to_be_unknown(place: Place) -> None:
    """Protects whoever has to delete a patient: the row may lie in the state, so no answer may say that
    nothing is remembered."""
    place("init")
    told(place, "topics", "--create-inputs")
    code, _, said = place.line("forget", place.config(), "--client", "p00")
    assert code == 2
    assert "cannot be forgotten" in said
    assert "remembers it" not in said


def test_a_ledger_of_another_federation_is_taken_over(place: Place) -> None:
    """Protects a second federation on the same data: what the first one spent is its own too, and no reason
    to delete anything."""
    place("init")
    told(place, "topics", "--create-inputs")
    place.remember(place.release(1))
    checks = {one["check"]: one for one in told(place, "check")["checks"]}
    assert "whichever federation wrote it" in checks[f"state in {TOPIC}"]["detail"]


@pytest.mark.parametrize("harm", ["lost record", "old topic", "old file", "another file"])
def test_a_ledger_that_no_party_would_continue_is_a_failed_check(place: Place, harm: str) -> None:
    """Protects whoever checks before a start, or because nothing is released: the worker is not ready, and a
    check that passes would send its operator elsewhere."""
    place("init")
    told(place, "topics", "--create-inputs")
    old, remembered = place.file.read_bytes(), place.release(1)
    if harm == "lost record":
        remembered = [record for record in remembered if record.key != b"spent/1-7"]
    elif harm == "old topic":
        place.release(1, 2)
    elif harm == "old file":
        place.file.write_bytes(old)
    else:
        place.file.unlink()
        place("init")
    place.remember(remembered)
    before = place.file.read_bytes()
    found = {one["check"]: one for one in told(place, "check", code=4)["checks"]}
    assert not found["ledger"]["passed"]
    assert found["ledger"]["detail"] == place.shown(4)["topic"]["disagreement"]
    assert "when-the-ledger-refuses" in found["ledger"]["remedy"]
    assert place.file.read_bytes() == before


def test_a_missing_ledger_file_is_named_with_what_makes_it(place: Place) -> None:
    """Protects the first start: exit code 2, and the command that begins a ledger."""
    found = told(place, "check", code=2)
    assert "streamfl ledger init" in found["checks"][0]["detail"]
    assert told(place, "check", code=4, **SERVER_ONLY)["checks"][0]["passed"]


def test_a_useless_part_of_the_state_ends_the_server_with_a_remedy_that_it_may_take(place: Place) -> None:
    """Protects an operator whose state somebody wrote to: weights are decoded only when they are needed, and
    the remedy was `streamfl reset`, which refuses to reset a member of DP Frank-Wolfe."""
    assert told(place, "topics", "--create-inputs", **SERVER_ONLY)
    config = place.config(**SERVER_ONLY)
    topic = "f.dp-frank-wolfe-server.state"
    with closing(connect(f"sqlite:///{place.folder}/bus")) as bus:
        bus.write([Outgoing(topic, b"weights/0", b"a stranger's", 0)])
    code, out, said = place.line("run", config)
    assert (code, out) == (2, "")
    assert f"the role's state in {topic} cannot be used: malformed: weights in state" in said
    assert "use another federation.name at every member" in said
    assert "streamfl reset" not in said
