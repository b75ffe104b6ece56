"""The role laws on the worker of `streamfl rekey`."""

from __future__ import annotations

import json

import pytest
from hypothesis import strategies as st

from streamfl.contract.role import Received, Record
from streamfl.encoding.wire import VERSION
from streamfl.records.formats import format_named
from streamfl.records.header_propagation import FollowedPredictions, carried
from streamfl.records.rekey import AssembledTopic, AssembleSection, RekeySection
from streamfl.rekeying.assembly import Assembled, Assembly, Together
from streamfl.rekeying.assembly_rows import ASSEMBLY_ROW, AssemblyRow, Named, decode_row
from streamfl.rekeying.reader import RekeyReader, RowReader
from streamfl.rekeying.role import Rekeying
from streamfl.testing.role_laws import Extreme, RoleLaws, Subject, Traffic

FIELDS = ("temp", "hum")
ROOMY = 100


def encode(sample: Assembled) -> bytes:
    return json.dumps(
        [sample.client, sample.place, sample.time, sample.written, sorted(sample.values.items())]
    ).encode()


def rekeying(together: Together) -> Rekeying:
    return Rekeying(Assembly(together), encode, carried(FollowedPredictions()))


def row(client: str, place: int, name: str, value: float, time: float, offset: int = 0) -> Received:
    message = AssemblyRow(VERSION, client, str(place), time, None, (Named(name, value),))
    headers = (("traceparent", b"%d" % offset),)
    record = Record(
        "pieces", len(client) % 2, offset, client.encode(), ASSEMBLY_ROW.encode(message), headers, time
    )
    return Received("pieces", message, record)


@st.composite
def traffic(draw: st.DrawFn, span: float | None) -> Traffic:
    """Rows of three clients: early, late, repeated and missing."""
    now, offset = 1000.0, 0
    batches: list[tuple[float, list[Received]]] = []
    for _ in range(draw(st.integers(1, 6))):
        now += draw(st.sampled_from([0.0, 1.0, 4.0, 20.0]))
        batch = []
        for _ in range(draw(st.integers(0, 6))):
            offset += 1
            client, place = draw(st.sampled_from(["a", "bb", "c"])), draw(st.integers(0, 4))
            time = 10.0 * place + draw(st.floats(0, 9)) if span else now
            value = draw(st.floats(-1e6, 1e6))
            batch.append(row(client, place, draw(st.sampled_from([*FIELDS, "other"])), value, time, offset))
        batches.append((now, batch))
        if draw(st.booleans()):
            batches.append((now, []))
    return Traffic(batches, partitions=[0, 1])


SECTION = AssembleSection(seconds=10.0, time="ts", time_unit="s")
READER = RowReader(format_named("json"), "site", None, SECTION, FIELDS)


def anybody(extreme: Extreme) -> list[tuple[str, Record]]:
    """Records as a plant's sensors write them, and rows as only a stranger would write them."""
    contents = [
        {"site": extreme.name, "ts": 12.5, "temp": extreme.number},
        {"site": extreme.name, "ts": 13, "hum": 1, "temp": extreme.whole},
        {"site": "a", "ts": extreme.number, "hum": extreme.name},
        {"site": "a", "ts": extreme.whole, "temp": 1.0},
    ]
    found = []
    for offset, content in enumerate(contents):
        value = json.dumps(content).encode()
        found.append(
            ("source", Record("readings", 0, offset, extreme.key, value, (("baggage", extreme.key),), 5.0))
        )
    for offset, place in enumerate(("1", extreme.name)):
        inputs = (Named("temp", extreme.number), Named("hum", 1))
        message = AssemblyRow(VERSION, extreme.name, place, extreme.number, extreme.name, inputs)
        try:
            value = ASSEMBLY_ROW.encode(message)
        except ValueError:
            value = b"\xc1"
        found.append(("pieces", Record("pieces", 0, offset, b"a", value, (("baggage", extreme.key),), 5.0)))
    return found


def subject(together: Together) -> Subject:
    bad = [(row("a", 0, "temp", 1.0, 0.0), "malformed")] if together.span else []
    if bad:
        bad[0][0].message.place = "first"
    return Subject(
        make=lambda: rekeying(together),
        traffic=traffic(together.span),
        anybody=anybody if together.span is None else lambda extreme: anybody(extreme)[:-1],
        decode={"source": READER.decode, "pieces": decode_row},
        bad=bad,
        # Without room the oldest sample by the clock is forgotten. Records that come for it later are sent
        # again.
        paced=["keyed", "refused"] if together.limit < ROOMY else [],
    )


SUBJECTS = {
    "spans": Together(FIELDS, "first", 10.0, 2.0, 8.0, ROOMY),
    "ids": Together(FIELDS, "first", None, 0.0, 8.0, ROOMY),
    "crowded": Together(FIELDS, "last", 10.0, 0.0, 15.0, 3),
    "means": Together(FIELDS, "mean", 10.0, 0.0, 1e6, ROOMY),
}


@pytest.mark.parametrize(
    "subject", [pytest.param(subject(together), id=name) for name, together in SUBJECTS.items()]
)
class TestAssembly(RoleLaws):
    """Samples that are assembled from several records."""


def rekeyed(client: str, offset: int) -> Received:
    record = Record("readings", 0, offset, b"7", json.dumps({"site": client}).encode(), (), 5.0)
    return Received("source", PLAIN.decode(record), record)


PLAIN = RekeyReader(format_named("json"), "site", None, None)


@pytest.mark.parametrize(
    "subject",
    [
        Subject(
            make=Rekeying,
            traffic=st.lists(st.sampled_from("abc"), min_size=1, max_size=5).map(
                lambda names: Traffic(
                    [(1.0, [rekeyed(name, offset) for offset, name in enumerate(names)])], [0]
                )
            ),
            anybody=lambda extreme: anybody(extreme)[:1],
            decode={"source": PLAIN.decode},
        )
    ],
)
class TestRekeying(RoleLaws):
    """Records that are rekeyed one by one."""


def test_the_sections_are_those_of_a_topic() -> None:
    """Protects `streamfl rekey` from a section that its topic's own settings lack."""
    section = AssembledTopic(topic="samples", rekey=RekeySection(topic="readings"), assemble=SECTION)
    assert section.model_dump()["topic"] == "samples"
    assert "rekey" not in section.model_dump(), "no state is made with it"
