"""What `streamfl check` makes of a party: it tells of values that cannot be read, and releases nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec
from dp_frank_wolfe.party_driver import settings

from streamfl.cli.check_inputs import look_at_inputs
from streamfl.cli.check_state import ChangelogContents
from streamfl.cli.preflight import Configured
from streamfl.dp_frank_wolfe.config import PARTY
from streamfl.dp_frank_wolfe.roles import ROLES
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.memory_bus import MemoryBus


def test_a_mistaken_field_is_told_of(tmp_path: Path) -> None:
    """Protects an operator whose field is misspelt: a worker would learn from rows of zeros, and say nothing.
    One row alone is nobody's business.
    """
    own, bus = settings(tmp_path), MemoryBus()
    kind = ROLES[PARTY]
    bus.create(kind.topics(own))
    bus.write(
        [Outgoing("a-samples", b"anna", msgspec.json.encode({"X0": 1.0, "x1": 1.0, "x2": 1.0, "x3": 1.0}))]
    )
    bus.write([Outgoing("labels", b"anna", b'{"y": 0.5}'), Outgoing("labels", b"bert", b'{"y": "high"}')])
    found = look_at_inputs(
        Configured(tmp_path / "a.toml", kind, own),
        bus,
        kind.build(own),
        kind.channels(own),
        ChangelogContents(),
    )
    by_name = {one.check: one for one in found}
    assert not by_name["records of a-samples"].passed
    assert "x0 is missing" in by_name["records of a-samples"].detail
    assert "takes such records in silence" in by_name["records of a-samples"].remedy
    assert by_name["records of labels"].detail == "2 of 2 records readable"
