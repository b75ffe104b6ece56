"""``streamfl ledger``: a file that is begun once, and what is seen of a ledger whose topic and file agree, or
do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dp_frank_wolfe.command_place import TOPIC, Place

from streamfl.configuration.settings import load_settings
from streamfl.dp_frank_wolfe.config import SERVER, DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.privacy.anchor import LINK_BYTES, Anchor
from streamfl.runtime.bus import Outgoing


@pytest.fixture(name="place")
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, monkeypatch, capsys)


def test_a_file_is_begun_once(place: Place) -> None:
    """Protects what was spent: a second `init` leaves the file, and the first one's is the party's alone and
    is told apart."""
    code, out, said = place("init")
    assert (code, place.file.stat().st_mode & 0o777) == (0, 0o600)
    assert out.strip() == Anchor.open(place.file, "patients", "ward").identity.hex()
    assert str(place.file) in said
    before = place.file.read_bytes()
    code, out, said = place("init")
    assert (code, out, place.file.read_bytes()) == (2, "", before)
    assert "exists already" in said


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"kind": SERVER, "secret_file": None, "ledger": None, "ledger_file": None}, "has no ledger"),
        ({"ledger_file": '"/nowhere/at/all"'}, "No such file"),
        ({"ledger_file": '"a\\u0000b"'}, "null"),
        ({"ledger_file": None}, "privacy.ledger_file is missing"),
        ({"ledger": None}, "privacy.ledger is missing"),
        ({"ledger": '"a/b"'}, "privacy.ledger"),
    ],
)
def test_what_is_wrong_in_the_settings_is_a_sentence(place: Place, given: dict[str, Any], told: str) -> None:
    """Protects the operator from a traceback: the setting is named, and the exit code is that of a
    configuration."""
    for command in ("init", "show"):
        code, out, said = place(command, place.config(**given))
        assert (code, out) == (2, "")
        assert told in said


def test_what_was_spent_is_shown(place: Place) -> None:
    """Protects whoever is asked how much was told of a person: the largest cost and its epsilon, and the
    chain's length."""
    place("init")
    place.remember(place.release(1, 2))
    shown, settings = place.shown(), load_settings(place.config(), DPFrankWolfeSettings)
    topic = shown["topic"]
    assert (shown["releases"], topic["releases"]) == ({"fits": 4, "predictions": 0},) * 2
    assert (topic["agrees"], topic["entities"]) == (True, 40)
    assert topic["largest_rho"] == Public(settings).fit_cost("ward") == topic["budget_rho"]
    assert topic["epsilon"] == pytest.approx(2.0, rel=1e-6)
    assert (shown["heads"], shown["heads"]["predictions"]) == (place.shown()["heads"], None)
    code, out, _ = place("show")
    assert code == 0
    assert "epsilon 2," in out
    assert "agree" in out
    # A link is a digest of rows too: who knows all of them but one could try out the last.
    assert Anchor.open(place.file, "patients", "ward").links()[-1].hex()[:16] not in out
    assert Anchor.open(place.file, "patients", "ward").note(5, bytes(range(LINK_BYTES))) is None
    assert place.shown()["heads"] != shown["heads"]


def test_a_file_that_is_one_step_ahead_agrees(place: Place) -> None:
    """Protects a party that was killed between the file and the commit: it does the work again, and nobody
    needs to act."""
    place("init")
    remembered = place.release(1)
    place.remember(remembered)
    ledger, outbox = place.ledger()
    for record in remembered:
        ledger.parts.restore(record.key or b"", record.value or b"")
    ledger.release(1, 1, "answers", b"", b"", b"rows", lambda link, head: None)
    [(work, _)] = outbox.take()[1]
    assert work.function(work.content) == b""
    assert (place.shown()["topic"]["agrees"], place.shown()["releases"]["fits"]) == (True, 3)


def test_topic_and_file_that_do_not_agree_are_a_failed_check(place: Place) -> None:
    """Protects the promise: a topic that was deleted, one of another file, one that is ahead of an old file,
    and a damaged one."""
    place("init")
    old = place.file.read_bytes()
    remembered = place.release(1)
    place.remember([])
    assert "has 0 releases for fits, and the file 2" in place.shown(4)["topic"]["disagreement"]
    place.remember(remembered)
    newest = place.file.read_bytes()
    place.file.write_bytes(old)
    assert "rolled back or truncated" in place.shown(4)["topic"]["disagreement"]
    assert "rolled back or truncated" in place("show")[2]
    place.file.unlink()
    place("init")
    assert "another ledger file" in place.shown(4)["topic"]["disagreement"]
    place.file.write_bytes(newest)
    assert place.shown()["topic"]["agrees"]
    place.remember([Outgoing(TOPIC, b"spent/1-0", b"\xcb", 0)])
    assert "damaged" in place.shown(4)["topic"]["disagreement"]


@pytest.mark.parametrize("lost", [b"spent/", b"spent/1-7", b"terms"])
def test_records_that_were_lost_are_a_failed_check(place: Place, lost: bytes) -> None:
    """Protects who was charged: chain and file agree on how many releases there were, and say nothing of
    whom."""
    place("init")
    remembered = place.release(1)
    place.remember([record for record in remembered if not (record.key or b"").startswith(lost)])
    assert "records of it were lost" in place.shown(4)["topic"]["disagreement"]


def test_without_the_bus_the_file_is_shown(place: Place) -> None:
    """Protects whoever looks after an accident: what the file says stands there, and then what is wrong with
    the bus."""
    place("init")
    code, out, said = place("show")
    assert code == 2
    assert "releases for fits" in out
    assert f"there is no topic {TOPIC}" in said
    text = place.config().read_text().replace(f"sqlite:///{place.folder}/bus", "kafka://127.0.0.1:1")
    place.config().write_text(f"bus.connect_timeout_seconds = 1\n{text}")
    code, out, said = place("show", place.folder / "ward.toml")
    assert (code, "releases for fits" in out) == (3, True)
    assert "Traceback" not in said
