"""An entity that comes in two partitions never meets itself: the coordinator says so, in its log and by not
being ready."""

from __future__ import annotations

from typing import Any

import pytest
from peers import Peers
from vafl.makers import member_sections

from streamfl.contract.channels import TopicSpec
from streamfl.records.place_watch import LATEST, PlaceWatch
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import find_kind


class Apart(Peers):
    """The same with three partitions a topic."""

    def _join(self, sections: dict[str, Any]) -> Any:
        kind = find_kind(sections["role"]["kind"])
        specs = kind.topics(kind.settings(**sections))
        self.bus.create([TopicSpec(spec.name, spec.partitions or 3, spec.compacted) for spec in specs])
        return super()._join(sections)

    def write(self, topic: str, key: bytes, content: bytes) -> None:
        self.bus.write([Outgoing(topic, key, content)])
        self.step()


@pytest.mark.parametrize("key", ["text", "int64"])
def test_a_party_that_is_keyed_otherwise_is_told(key: str, caplog: pytest.LogCaptureFixture) -> None:
    """Protects the predictions of half of all entities: one party's binary keys put them elsewhere, and
    nothing said so."""
    shop = member_sections("vafl-party", "shop")
    shop["samples"]["key"] = key
    federation = Apart(member_sections("vafl-coordinator"), member_sections("vafl-party"), shop)
    for number in range(12):
        federation.write("bank-rows", str(number).encode(), b'{"age": 0.5}')
        federation.write(
            "shop-rows",
            number.to_bytes(8, "big") if key == "int64" else str(number).encode(),
            b'{"age": 0.5}',
        )
    trouble = federation.workers[0].health.trouble
    assert ("never meet" in (trouble or "")) == (key == "int64")
    assert (caplog.text.count("keyed_otherwise") == 1) == (key == "int64")
    assert trouble is None or "streamfl rekey CONFIG" in trouble


def test_a_stray_record_is_nobodys_trouble_for_good() -> None:
    """Protects readiness from one wrong record, and memory from as many names as anybody likes."""
    watch = PlaceWatch()
    watch.came(0, "a label", ["ann"])
    watch.came(1, "an embedding of shop", ["ann"])
    assert "in partition 0 with a label and in partition 1 with an embedding of shop" in (
        watch.disorder or ""
    )
    assert [notice.reason for notice in watch.notices()] == ["keyed_otherwise"]
    watch.came(0, "a label", map(str, range(LATEST)))
    assert watch.disorder is None
    assert list(watch.notices()) == []
    watch.came(0, "a label", map(str, range(100_000)))
    assert len(watch._places) <= 10_000
