"""``streamfl scorecard``: each party's file, from what it remembers; all files together score as the
federation does."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run_command
from quasi_newton.federations import ALIGNMENT, LEARNING, settings_of
from quasi_newton.laws.closed_loop import ClosedLoop
from quasi_newton.laws.scoring import predictions, scored, table

from streamfl.contract.channels import TopicSpec
from streamfl.quasi_newton.roles import ROLES
from streamfl.runtime.bus import Outgoing, connect
from streamfl.state.state_settings import STATE_SETTINGS_HEADER, STATE_SETTINGS_KEY

QUANTUM, ENTITIES = 1 / 64, 350
# Large enough for a column of each bin.
LARGE: dict[str, Any] = {"learning": {"epochs": 1, "batch": 150}, "alignment": {"entities": 150}}


class Place:
    """Settings files of guest, host and coordinator, and a bus in a file with what they remember."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self.folder = folder
        self._monkeypatch, self._capture = monkeypatch, capture

    def config(self, name: str, features: str = '["x0", "x1", "x2"]', method: str = "standardise") -> Path:
        """The settings of a member, as in the closed loops."""
        path = self.folder / f"{name}.toml"
        kind = {"g": "guest", "c": "coordinator"}.get(name, "host")
        lines = [
            f'bus.url = "sqlite:///{self.folder}/bus"',
            'federation = {name = "f", parties = ["g", "h1"]}',
            f'role.kind = "quasi-newton-{kind}"',
            'encryption = {precision = "plain", study = true}',
            *(f"learning.{key} = {value}" for key, value in {**LEARNING, **LARGE["learning"]}.items()),
            *(f"alignment.{key} = {value}" for key, value in {**ALIGNMENT, **LARGE["alignment"]}.items()),
            f'preprocessing.method = "{method}"',
        ]
        if kind != "coordinator":
            lines += [
                f'party.name = "{name}"',
                f'samples = {{topic = "{name}-samples", features = {features}}}',
            ]
        if kind == "guest":
            lines.append('labels = {topic = "labels", label = "y"}')
        path.write_text("\n".join(lines) + "\n")
        return path

    def remember(self, loop: ClosedLoop, *names: str) -> None:
        """Write the members' changelogs to the bus."""
        bus = connect(f"sqlite:///{self.folder}/bus")
        for name in names:
            member = loop.members[name]
            topic = f"{member.settings.member}.state"
            bus.create([TopicSpec(topic, 1, compacted=True)])
            header = (
                STATE_SETTINGS_HEADER,
                ROLES[member.settings.role.kind].state_settings(member.settings).encode(),
            )
            # A model from before, which is gone.
            bus.write([Outgoing(topic, b"trained/7", b"old", 0), Outgoing(topic, b"trained/7", None, 0)])
            bus.write([Outgoing(topic, STATE_SETTINGS_KEY, struct.pack("<q", 0), 0, (header,))])
            bus.write([Outgoing(topic, key, value, 0) for key, value in member.state.items()])
        bus.close()

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        return run_command(self._monkeypatch, self._capture, "scorecard", *arguments)

    def written(self, name: str, *arguments: object, method: str = "standardise") -> dict[str, Any]:
        """A party's file."""
        out = self.folder / f"{name}.json"
        code, _, said = self(self.config(name, method=method), "--out", out, *arguments)
        assert code == 0, said
        content: dict[str, Any] = json.loads(out.read_text())
        return content


@pytest.fixture(name="place")
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, monkeypatch, capsys)


def points_of(card: dict[str, Any], numbers: Any) -> float:
    """A party's points of one entity, by its file alone."""
    total = float(card["points"]["constant"])
    for column, number in zip(card["points"]["columns"], numbers, strict=True):
        if "bins" in column:
            inside = (
                one for one in column["bins"]
                if not one.get("missing")
                and (one["from"] is None or one["from"] <= number)
                and (one["below"] is None or number < one["below"])
            )  # fmt: skip
            total += next(inside)["points"]
        else:
            how = next(one for one in card["coefficients"] if one["column"] == column["column"])
            if "low" in how:
                number = min(max(number, how["low"]), how["high"])
            if how["transform"] == "rank":
                number = np.interp(number, *np.transpose(how["knots"]))
            total += column["points_per_unit"] * number
    return total


@pytest.mark.long
@pytest.mark.parametrize("method", ["rank", "quantile-bins", "weight-of-evidence"])
def test_the_files_score_as_the_federation_does(place: Place, method: str) -> None:
    """Protects whoever takes a scorecard elsewhere: the parties' points, by their files alone, add up to each
    published score."""
    loop = scored(1, ENTITIES, preprocessing={"method": method}, **LARGE)
    place.remember(loop, "g", "h1")
    guest = place.written("g", method=method)
    slope = guest["calibration"]["slope"]
    host = place.written(
        "h1", "--slope", slope, method="standardise" if method == "weight-of-evidence" else method
    )
    assert (guest["model"], host["model"], guest["party"], host["party"]) == (1, 1, "g", "h1")
    assert "calibration" not in host
    columns, _ = table(1, ENTITIES)
    # Half a quantum of the host, and a hundredth of a point for each number that is rounded so; inputs are
    # rounded to 1/256.
    allowed = abs(slope) * 20 / math.log(2) * (QUANTUM / 2 + 6 / 256) + 0.06
    found = predictions(loop)
    assert len(found) == 336
    for one in found:
        total = points_of(guest, columns["g"][one["entity"]]) + points_of(host, columns["h1"][one["entity"]])
        assert abs(total - one["score"]) < allowed


def test_a_file_has_the_partys_own_columns_alone(place: Place) -> None:
    """Protects each party's model: nothing of the other's is in its file, and a host has no points before it
    is told the slope."""
    loop = scored(1, ENTITIES, **LARGE)
    place.remember(loop, "g", "h1")
    host = place.written("h1")
    assert host["points"] is None
    assert "intercept" not in host
    model = loop.party("h1").trained
    assert model is not None
    assert [one["weight"] for one in host["coefficients"]] == model.weights.tolist()
    assert [one["column"] for one in host["coefficients"]] == ["x0", "x1", "x2"]
    code, out, said = place(place.config("h1"), "--out", place.folder / "h1.json", "--format", "json")
    assert (code, json.loads(out)) == (
        0,
        {"path": str(place.folder / "h1.json"), "model": 1, "columns": 3, "points": False},
    )
    assert said == ""
    assert "--slope" in place(place.config("h1"), "--out", place.folder / "h1.json")[2]


def test_what_was_not_trained_has_no_scorecard(place: Place) -> None:
    """Protects from an empty file that looks like a model: it is said what is missing, where, and nothing is
    written."""
    out = place.folder / "card.json"
    wrong = {
        "there is no topic f.g.state": (place.config("g"), "--out", out),
        "has no columns": (place.config("c"), "--out", out),
        "the guest has the calibration": (place.config("g"), "--out", out, "--slope", "1"),
    }
    for text, arguments in wrong.items():
        code, _, said = place(*arguments)
        assert (code, text in said) == (2, True), said
    loop = ClosedLoop({"g": settings_of("g", 1, scoring={}, **LARGE)})
    loop.members["g"].state = {b"entity/a": b"x"}
    place.remember(loop, "g")
    code, _, said = place(place.config("g", method="clip"), "--out", out)
    assert (code, "no training has come to its end" in said) == (2, True), said
    assert not out.exists()


def test_a_damaged_model_and_other_settings_are_refused(place: Place) -> None:
    """Protects from points under wrong names: columns in another order than the model was made with are
    refused, damage too."""
    loop = scored(1, ENTITIES, **LARGE)
    place.remember(loop, "g", "h1")
    out = place.folder / "card.json"
    code, _, said = place(place.config("g", features='["x1", "x0", "x2"]'), "--out", out)
    assert (code, "samples.features" in said) == (2, True), said
    code, _, said = place(place.config("g"), "--out", place.folder)
    assert (code, "cannot be written" in said) == (2, True), said
    bus = connect(f"sqlite:///{place.folder}/bus")
    bus.write([Outgoing("f.g.state", b"trained/0", b"\x96\x01", 0)])
    bus.close()
    code, _, said = place(place.config("g"), "--out", out)
    assert (code, "is damaged" in said) == (2, True), said
    assert not out.exists()
