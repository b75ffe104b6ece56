"""``streamfl init``: from a topic as it is to a federation that predicts, and what it refuses to guess."""

from __future__ import annotations

import io
import json
import math
import struct
import time
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import fastavro
import pytest
from command_line import run_command
from registry import serving
from streamfl_connectors.framing import framed

from streamfl.cli.init_read import records_of
from streamfl.cli.preflight import read_configuration
from streamfl.runtime.bus import Outgoing, TopicSpec
from streamfl.runtime.kinds import build_worker
from streamfl.runtime.memory_bus import MemoryBus

ROWS = 60
SITES = 3


def nested(n: int) -> dict[str, Any]:
    wave = math.sin(n / 7)
    row: dict[str, Any] = {
        "meta": {
            "site": f"site-{n % SITES}",
            "at": f"2026-11-{1 + n % 28:02d}T{n % 24:02d}:10:00Z",
            "serial": f"S{n}",
        },
        "payload": {
            "temp": f"{20 + wave:.2f}",
            "kind": ["pump", "fan"][n % 2],
            "ok": n % 2 == 0,
            "volts": [wave, 2 - wave],
        },
        "load": 50 + 40 * wave,
    }
    if n % 5 == 0:
        row["payload"]["volts"] = [wave, None]
    return row


class Site:
    """A bus with the user's topic on it, and the command line."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self.folder, self.url = folder, f"memory://{folder.name}"
        self._monkeypatch, self._capture = monkeypatch, capture
        self.bus = MemoryBus.at(self.url)

    def write(self, topic: str, records: list[tuple[bytes | None, Any]], partitions: int = 2) -> None:
        self.bus.create([TopicSpec(topic, partitions, compacted=False)])
        values = [
            (key, value if isinstance(value, bytes) else json.dumps(value).encode()) for key, value in records
        ]
        self.bus.write([Outgoing(topic, key, value) for key, value in values])

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        return run_command(self._monkeypatch, self._capture, *arguments)

    def init(self, name: str, *arguments: object) -> tuple[int, str, str]:
        return self("init", self.folder / name, "--url", self.url, *arguments)

    def said(self, *arguments: object) -> str:
        code, out, error = self(*arguments)
        assert code == 0, error
        return out


@pytest.fixture(name="site")
def _site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Site:
    return Site(tmp_path, monkeypatch, capsys)


def test_partitions_that_there_was_no_time_for_are_told(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects the number of clients: from a slow broker `init` read one partition of four, wrote 7 clients
    into the server's file and 54 into the client's, and the server refused the others' updates.
    """
    site.write("readings", [(f"site-{n}".encode(), nested(n)) for n in range(ROWS)], partitions=4)
    _, partitions, whole = records_of(site.bus, "readings", time.monotonic() - 1.0)
    assert (partitions, whole) == (4, False)
    assert "time is over after 1 of 4 partitions of readings" in capsys.readouterr().err
    records_of(site.bus, "readings", time.monotonic() + 600.0)
    assert not capsys.readouterr().err


def test_what_is_written_runs(site: Site) -> None:
    """Protects the first half hour with one's own topic: nested JSON, text, times and gaps, and every record
    is predicted."""
    site.write("readings", [(nested(n)["meta"]["site"].encode(), nested(n)) for n in range(ROWS)])
    fast = ("--set", "learning.features_per_kernel=4", "--set", "uplink.kernels_per_upload=2")
    fields = (
        "--from-topic",
        "readings",
        "--client",
        "meta.site",
        "--label",
        "load",
        "--federation",
        "plant",
        *fast,
    )
    client, server = site.folder / "client.toml", site.folder / "server.toml"
    code, out, error = site.init("client.toml", *fields)
    assert code == 0, error
    assert f"{ROWS} of {ROWS} records can be read with it" in error
    assert "meta.serial" in out
    assert site.init("server.toml", "--role", "pofmkl-server", *fields)[0] == 0
    written = tomllib.loads(client.read_text())
    assert written["federation"]["clients"] == SITES
    assert written["samples"]["label_range"] == [10.0, 90.0]
    inputs = {one.pop("field"): one for one in written["samples"]["inputs"]}
    assert inputs == {
        "meta.at": {"as": "hour-of-day"},
        "payload.temp": {"as": "number"},
        "payload.kind": {"as": "category", "values": ["fan", "pump"]},
        "payload.ok": {"as": "boolean"},
        "payload.volts[0]": {},
        "payload.volts[1]": {"missing": "mean"},
    }
    assert tomllib.loads(server.read_text())["federation"] == written["federation"]
    assert "samples" not in tomllib.loads(server.read_text())
    site.said("topics", client, "--create")
    site.said("topics", server, "--create")
    site.said("check", client)
    clients, learner = (
        build_worker(read_configuration(path).settings, site.bus) for path in (client, server)
    )
    with closing(clients), closing(learner):
        while clients.step(0.0) | learner.step(0.0):
            pass
    predictions = [json.loads(line) for line in site.said("read", client, "--format", "json").splitlines()]
    assert len(predictions) == ROWS
    assert site.said("read", client, "dead-letters", "--format", "json") == ""
    late = [one for one in predictions if int(one["sample"].rsplit("-", 1)[1]) > 10]
    assert sum(abs(one["prediction"] - one["label"]) for one in late) / len(late) < 20


def test_nothing_is_overwritten(site: Site) -> None:
    """Protects settings that somebody has worked on: a file that is there stays, whatever else is said."""
    (site.folder / "mine.toml").write_text("mine")
    code, _, error = site.init("mine.toml", "--from-topic", "readings")
    assert code == 2
    assert "not overwritten" in error
    assert (site.folder / "mine.toml").read_text() == "mine"


@pytest.mark.parametrize(
    ("key", "arguments", "told"),
    [
        (b"site", ("--client", "meta.site"), ["--label FIELD", "--no-label", "payload.temp", "load"]),
        (None, ("--label", "load"), ["--client FIELD", "meta.site (3 different)"]),
        (struct.pack(">q", 3), ("--label", "load"), ["--client FIELD", "samples.key=int64"]),
        (b'{"id": 3}', ("--label", "load"), ["no plain name", "samples.key_field=FIELD"]),
        (b"site", ("--label", "meta.site"), ["numbers are expected", "load"]),
        (b"site", ("--label", "lo[ad"), ["'lo[ad'", "a path such as"]),
        (b"site", ("--label", "load", "--client", "meta..site"), ["a path such as"]),
        (b"site", ("--label", "load", "--client", ""), ["--client is empty"]),
        (b"site", ("--label", "load", "--sample-id", "`id"), ["a path such as"]),
        (b"site", ("--label", "load", "--client", "meta.place"), ["no record has a name there", "meta.site"]),
        (
            b"site",
            ("--label", "load", "--set", "federation.cliens=4"),
            ["federation.cliens is not known", "clients"],
        ),
        (b"site", ("--label", "load", "--parties", "a,b"), ["no meaning"]),
        (
            b"site",
            ("--label", "load", "--set", 'samples.inputs=[{field="load"}]'),
            ["not be valid TOML", "samples", "inputs"],
        ),
        (
            b"site",
            ("--label", "load", "--role", "pofmkl-server", "--set", "bus.a b.c=1"),
            ["not be valid TOML"],
        ),
        (b"site", ("--label", "load", "--message", "", "--record-format", "protobuf"), ["message = ''"]),
        (b"site", ("--label", "load", "--record-format", "avro"), ["schema"]),
    ],
)
def test_what_only_the_user_knows_is_asked_for(
    site: Site, key: bytes | None, arguments: tuple[str, ...], told: list[str]
) -> None:
    """Protects from a guess that would learn the wrong thing in silence: exit code 2, what is asked for, and
    what there is."""
    site.write("readings", [(key, nested(n)) for n in range(ROWS)])
    code, _, error = site.init("new.toml", "--from-topic", "readings", *arguments)
    assert code == 2, error
    for word in told:
        assert word in error
    assert not (site.folder / "new.toml").exists()


def test_keys_in_binary_are_read_as_one_says(site: Site) -> None:
    """Protects topics keyed by numbers: they are counted as the worker will read them."""
    site.write("readings", [(struct.pack(">q", n % 4), nested(n)) for n in range(ROWS)])
    assert (
        site.init("new.toml", "--from-topic", "readings", "--label", "load", "--set", "samples.key=int64")[0]
        == 0
    )
    assert read_configuration(site.folder / "new.toml").settings.federation.clients == 4  # type: ignore[attr-defined]


def test_a_topic_that_is_keyed_otherwise_is_to_be_written_anew(site: Site) -> None:
    """Protects from a file that cannot run: a client in several partitions is seen, and the way out is in the
    file."""
    site.write("readings", [(str(n).encode(), nested(n)) for n in range(ROWS)])
    code, _, error = site.init(
        "new.toml", "--from-topic", "readings", "--label", "load", "--client", "meta.site"
    )
    assert code == 0, error
    assert "streamfl rekey" in error
    samples = tomllib.loads((site.folder / "new.toml").read_text())["samples"]
    assert (samples["topic"], samples["rekey"]) == ("readings-by-client", {"topic": "readings"})
    site.said("topics", site.folder / "new.toml", "--create")


def test_a_file_will_do(site: Site) -> None:
    """Protects whoever has no topic yet: lines of CSV or JSON become settings, and no bus is asked."""
    table = site.folder / "plant data.csv"
    table.write_text("site,temp,load\n" + "".join(f"s{n % 3},{n / 7:.2f},{n}\n" for n in range(ROWS)))
    lines = site.folder / "plant.jsonl"
    lines.write_text("".join(json.dumps(nested(n)) + "\n" for n in range(ROWS)))
    for name, file, field in (("csv.toml", table, "site"), ("json.toml", lines, "meta.site")):
        code, out, error = site(
            "init",
            site.folder / name,
            "--from-file",
            file,
            "--client",
            field,
            "--label",
            "load",
            "--format",
            "json",
        )
        assert code == 0, error
        said = json.loads(out)
        assert said["readable"] == said["records"] >= ROWS
        assert not error
        assert said["to_fill_in"] == []
        assert said["settings"]["bus"]["url"].startswith("kafka://")
        assert read_configuration(site.folder / name).kind.name == "pofmkl-client"
    assert tomllib.loads((site.folder / "csv.toml").read_text())["samples"]["topic"] == "plant-data"
    assert site("init", site.folder / "no.toml", "--from-file", site.folder / "nowhere")[0] == 5


def test_words_are_no_numbers_to_predict(site: Site) -> None:
    """A label of yes and no was refused, and listed among the fields that could be one. What to write in its
    place is said."""
    table = site.folder / "doors.csv"
    table.write_text(
        "site,temp,open\n"
        + "".join(f"s{n % 3},{n / 7:.2f},{'yes' if n % 2 else 'no'}\n" for n in range(ROWS))
    )
    code, _, error = site.init("new.toml", "--from-file", table, "--client", "site", "--label", "open")
    assert code == 2
    assert "numbers are expected, 1 and 0 of two classes; fields with numbers are temp. Words are no" in error
    assert "write numbers in their place, of two classes 1 and 0" in error


@pytest.mark.parametrize(("unit", "expected"), [(1e-9, (0.0, 2e-8)), (1e6, (0.0, 2e7)), (0.0, (0.0, 1.0))])
def test_the_range_of_the_label_has_its_size(site: Site, unit: float, expected: tuple[float, float]) -> None:
    """Protects labels such as 1e-9: within a range of 0 to 1 they would all be the same number, and nothing
    could be learnt of them."""
    table = site.folder / "plant.csv"
    rows = [f"s{n % 3},{n / 7:.2f},{unit * (1 + n % 15):g}\n" for n in range(ROWS)]
    table.write_text("".join(["site,temp,load\n", *rows]))
    code, _, error = site.init("new.toml", "--from-file", table, "--client", "site", "--label", "load")
    assert code == 0, error
    written = tomllib.loads((site.folder / "new.toml").read_text())
    assert tuple(written["samples"]["label_range"]) == pytest.approx(expected)


def test_names_of_strangers_cannot_leave_their_place(site: Site) -> None:
    """Protects the file from records: a field's name with quotes, newlines or a section in it stays a
    name."""
    evil = '"\n[bus]\nurl = "kafka://evil:1"\n# \x7f\x1b'
    site.write(
        "readings", [(b"a", {evil: n / 3, "kind": f"{'x' if n % 2 else evil}", "y": n}) for n in range(ROWS)]
    )
    code, _, error = site.init("new.toml", "--from-topic", "readings", "--label", "y")
    assert code == 0, error
    text = (site.folder / "new.toml").read_text()
    assert "\x1b" not in text
    assert tomllib.loads(text)["bus"]["url"] == site.url
    assert f"{ROWS} of {ROWS}" in error


def test_labels_on_a_topic_of_their_own(site: Site) -> None:
    """Protects late labels: their range stands with the samples, and the id that both have is found or taken
    as it is given."""
    readings = [{"id": f"r{n}", "site": f"s{n % 3}", "temp": n / 3, "wear": 1} for n in range(ROWS)]
    outcomes = [{"id": f"r{n}", "wear": 100 + n} for n in range(ROWS)]
    site.write("readings", [(one["site"].encode(), one) for one in readings])
    site.write("outcomes", [(f"s{n % 3}".encode(), one) for n, one in enumerate(outcomes)])
    asked = ("--from-topic", "readings", "--labels-topic", "outcomes", "--label", "wear", "--client", "site")
    code, _, error = site.init("found.toml", *asked)
    assert code == 0, error
    assert tomllib.loads((site.folder / "found.toml").read_text())["labels"]["sample_id"] == "id"
    assert site.init("new.toml", *asked, "--sample-id", "id")[0] == 0
    written = tomllib.loads((site.folder / "new.toml").read_text())
    assert written["samples"]["features"] == ["temp"]
    assert written["samples"]["label_range"] == [100.0, 160.0]
    assert written["labels"] == {"topic": "outcomes", "sample_id": "id", "label": "wear"}
    read_configuration(site.folder / "new.toml")


@pytest.mark.parametrize("labels_are_keyed", [True, False])
def test_labels_that_are_keyed_like_no_sample_are_to_be_written_anew(
    site: Site, labels_are_keyed: bool
) -> None:
    """Protects two topics of which neither is keyed by client: only the samples were to be rekeyed, and half
    of the labels became dead letters."""
    rows = [{"id": f"r{n}", "site": f"s{n % 3}", "temp": n / 3} for n in range(ROWS)]
    site.write("readings", [(one["id"].encode(), one) for one in rows])
    outcomes = [{"id": one["id"], "site": one["site"], "wear": 100 + n} for n, one in enumerate(rows)]
    key = "site" if labels_are_keyed else "id"
    site.write("outcomes", [(str(one[key]).encode(), one) for one in outcomes])
    asked = ("--from-topic", "readings", "--labels-topic", "outcomes", "--label", "wear", "--client", "site")
    code, _, error = site.init("new.toml", *asked)
    assert code == 0, error
    written = tomllib.loads((site.folder / "new.toml").read_text())
    assert written["samples"]["rekey"] == {"topic": "readings"}
    if labels_are_keyed:
        assert written["labels"]["topic"] == "outcomes"
        return
    assert (written["labels"]["topic"], written["labels"]["rekey"]) == (
        "outcomes-by-client",
        {"topic": "outcomes"},
    )
    assert "--stream labels" in error


SCHEMA = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "site", "type": "string"},
        {"name": "temp", "type": ["null", "double"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "load", "type": "double"},
    ],
}


def avro(number: int, n: int) -> bytes:
    content = io.BytesIO()
    row = {
        "site": f"s{n % 3}",
        "temp": None if n % 4 == 0 else n / 3,
        "at": 1_790_000_000_000 + n,
        "load": float(n),
    }
    fastavro.schemaless_writer(content, fastavro.parse_schema(SCHEMA), row)
    return framed(number, content.getvalue())


def test_records_behind_a_registry(site: Site) -> None:
    """Protects Avro: its schema is asked for, the registry's address is in the file, and silence ends with
    exit code 3 in time."""
    with serving() as registry:
        number = registry.add(SCHEMA)
        site.write("readings", [(b"key", avro(number, n)) for n in range(ROWS)])
        asked = (
            "--from-topic",
            "readings",
            "--client",
            "site",
            "--label",
            "load",
            "--registry",
            registry.url,
        )
        code, _, error = site.init("new.toml", *asked)
        assert code == 0, error
        assert f"{ROWS} of {ROWS} records" in error
        written = tomllib.loads((site.folder / "new.toml").read_text())
        assert (written["registry"]["url"], written["samples"]["format"]) == (registry.url, "avro")
        assert written["samples"]["inputs"] == [
            {"field": "temp", "missing": "mean"},
            {"field": "at", "as": "hour-of-day", "unit": "ms"},
        ]
        registry.status = 503
        began = time.monotonic()
        code, _, error = site.init("later.toml", *asked, "--seconds", "0.2")
        assert code == 3
        assert "503" in error
        assert time.monotonic() - began < 30
        assert not (site.folder / "later.toml").exists()
