"""``streamfl check`` and ``init`` on topics that are not as they seem: labels keyed otherwise, one sensor a
record."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pofmkl.unit.test_init import Site

ROWS = 60
DEVICES = 3


@pytest.fixture(name="site")
def _site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Site:
    return Site(tmp_path, monkeypatch, capsys)


def found(site: Site, config: str, check: str) -> dict[str, Any]:
    _, out, _ = site("check", site.folder / config, "--format", "json")
    (one,) = [one for one in json.loads(out)["checks"] if one["check"] == check]
    return dict(one)


@pytest.mark.parametrize("named", ["reading", "id"], ids=["the id that both have", "another id"])
def test_labels_that_meet_no_sample_are_told(site: Site, named: str) -> None:
    """Protects from a federation that never learns: every check was green while no label could ever meet a
    sample."""
    readings = [(f"d{n % DEVICES}".encode(), {"rid": f"r{n}", "temp": n / 3}) for n in range(ROWS)]
    outcomes = [
        (f"d{n % DEVICES}".encode(), {"id": f"o{n}", "reading": f"r{n}", "wear": 2 * n}) for n in range(ROWS)
    ]
    site.write("readings", readings)
    site.write("outcomes", outcomes)
    asked = ("--from-topic", "readings", "--labels-topic", "outcomes", "--label", "wear")
    assert site.init("client.toml", *asked)[0] == 0
    written = tomllib.loads((site.folder / "client.toml").read_text())
    assert (written["samples"]["sample_id"], written["labels"]["sample_id"]) == ("rid", "reading")
    text = (
        (site.folder / "client.toml").read_text().replace('sample_id = "reading"', f'sample_id = "{named}"')
    )
    (site.folder / "client.toml").write_text(text)
    told = found(site, "client.toml", "labels of outcomes")
    assert told["passed"] is (named == "reading")
    if named == "id":
        assert 'labels.sample_id = "reading"' in told["remedy"]


def test_times_in_another_unit_are_told(site: Site) -> None:
    """Protects from hours of the day that are noise: seconds that are read as milliseconds are times in
    January 1970, and every check was green."""
    rows = [
        (b"d1", {"at": 1_790_000_000 + 900 * n, "late": 1_790_000_000_000 + n, "temp": n / 3, "load": n})
        for n in range(ROWS)
    ]
    site.write("readings", rows)
    assert site.init("client.toml", "--from-topic", "readings", "--label", "load")[0] == 0
    path = site.folder / "client.toml"
    head = path.read_text().partition("[[samples.inputs]]")[0]
    inputs = 'field = "at"\nas = "hour-of-day"\nunit = "ms"\n[[samples.inputs]]\nfield = "late"\n'
    inputs += 'as = "hour-of-day"\nunit = "ms"\n'
    text = re.sub(r"features = .*", "features = 4", head)
    path.write_text(f"{text}[[samples.inputs]]\n{inputs}")
    told = found(site, "client.toml", "times of readings")
    assert told["passed"]
    assert told["warns"]
    assert told["detail"] == '20 of 20 values of at are in 1970 with unit = "ms"'


def test_records_of_one_sensor_each_are_recognised(site: Site) -> None:
    """Protects from a mixture of all sensors that is learnt as if it were one quantity."""
    records = []
    for n in range(ROWS):
        for sensor in ("temp", "load", "speed"):
            device = f"d{n % DEVICES}"
            value = {"dev": device, "sensor": sensor, "value": n / 7 + len(sensor), "ts": 1_700_000_000 + n}
            records.append((device.encode(), value))
    site.write("narrow", records)
    code, _, error = site.init("client.toml", "--from-topic", "narrow", "--client", "dev", "--label", "load")
    assert code == 0, error
    assert "assemble" in tomllib.loads((site.folder / "client.toml").read_text())["samples"]
