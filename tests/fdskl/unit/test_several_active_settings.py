"""What several active parties need of their settings, and the topics and rights that follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from fdskl.makers import settings_of
from identities import Keys
from pydantic import ValidationError

from streamfl.contract.role import BadRecord, Record
from streamfl.fdskl.config import WORKER
from streamfl.fdskl.messages import TURN, Turn
from streamfl.fdskl.roles import ROLES

KIND = ROLES[WORKER]
SGD = {"solver": "sgd"}


def several(party: str, active: list[str], parties: int = 4, **sections: dict[str, Any]) -> Any:
    federation = {"active": active, **sections.pop("federation", {})}
    return settings_of(party, parties, federation=federation, **{"learning": SGD, **sections})


@pytest.mark.parametrize(
    ("party", "active", "sections", "text"),
    [
        (
            "p1",
            ["p0", "p1"],
            {"learning": {"solver": "newton"}},
            '"newton" needs exactly one active party, and .* names p0, p1',
        ),
        (
            "p2",
            ["p0", "p1"],
            {"aggregation": {"mask": "paper"}},
            'mask = "paper" needs exactly one active party',
        ),
        (
            "p0",
            ["p0", "p1"],
            {"bus": {"url": "memory://", "processing_guarantee": "at_least_once"}},
            '"exactly_once" is expected',
        ),
        (
            "p0",
            ["p0", "p1"],
            {"learning": SGD | {"features_limit": 5000, "block_features": 2}},
            "at least a 2,048th of",
        ),
        ("p0", ["p0", "p9"], {}, "active = 'p9': one of federation.parties"),
        ("p0", ["p0", "p0"], {}, "no party may occur twice"),
        ("p0", [], {}, "at least 1 item"),
    ],
)
def test_what_only_one_active_party_can_do_is_refused(
    party: str, active: list[str], sections: dict[str, dict[str, Any]], text: str
) -> None:
    """Protects several organisations from a start that cannot work: the text says which key, and why."""
    with pytest.raises(ValidationError, match=text):
        several(party, active, **sections)


def test_a_party_that_is_not_active_may_leave_the_solver_out() -> None:
    """Protects the other parties' files from keys that have no effect there; but labels belong to active ones
    alone."""
    assert not several("p2", ["p0", "p1"], learning={}).is_active
    content = msgspec.json.decode(several("p1", ["p0", "p1"]).model_dump_json())
    content["party"] = {"name": "p2"}
    with pytest.raises(
        ValidationError, match=r"labels has no meaning at 'p2': federation\.active is 'p0', 'p1'"
    ):
        KIND.settings.model_validate(content)


def test_a_list_of_one_is_one() -> None:
    """Protects a federation that goes on: how its only active party is written changes neither messages nor
    topics."""
    one = settings_of("p0", 3, federation={"active": "p0"})
    listed = settings_of("p0", 3, federation={"active": ["p0"]})
    assert KIND.build(one).settings.fingerprint == KIND.build(listed).settings.fingerprint
    assert set(KIND.channels(one).outputs) == set(KIND.channels(listed).outputs)
    prints = [
        KIND.build(several("p0", active)).settings.fingerprint for active in (["p0", "p1"], ["p1", "p0"])
    ]
    assert len(set(prints)) == 2


def test_every_active_party_has_inboxes_and_the_log() -> None:
    """Protects rights: both ask for sums, the first alone hears of revisions and predicts, and nobody else
    reads the log."""
    first, second, other = (KIND.channels(several(party, ["p2", "p0"])) for party in ("p2", "p0", "p1"))
    assert set(first.inputs) == {"samples", "labels", "incarnations", "rounds", "sums", "revisions", "turns"}
    assert set(second.inputs) == {"samples", "labels", "incarnations", "rounds", "sums", "turns"}
    assert set(other.inputs) == {"samples", "incarnations", "rounds", "sums"}
    assert {"predictions", "turns", "rounds/p0", "rounds/p1", "rounds/p3"} <= set(first.outputs)
    assert {"turns", "rounds/p1", "rounds/p2", "rounds/p3", "revisions/p2"} <= set(second.outputs)
    assert "predictions" not in second.outputs
    assert not {"turns", "predictions"} & set(other.outputs)
    assert not any(name.startswith("rounds/") for name in other.outputs)
    assert first.inputs["turns"].topic == second.inputs["turns"].topic == second.outputs["turns"] == "f.turns"
    for party, channels in (("p2", first), ("p0", second), ("p1", other)):
        topics = {topic.name for topic in KIND.topics(several(party, ["p2", "p0"]))}
        assert set(channels.outputs.values()) | {one.topic for one in channels.inputs.values()} <= topics
    # A party may write to those above it in either tree.
    star = KIND.channels(several("p1", ["p2", "p0"], aggregation={"topology": "star"}))
    assert {name for name in star.outputs if name.startswith("sums/")} == {"sums/p0", "sums/p2"}


def test_turns_are_signed_where_members_have_keys(tmp_path: Path) -> None:
    """Protects the order of learning from whoever may write to the bus: a turn is its sender's, of its place,
    and unchanged."""
    keys = Keys(tmp_path, "f")
    for number in range(3):
        keys.add(f"m{number}", WORKER, speaks_for=(f"p{number}",))
    settings = [several(f"p{number}", ["p0", "p1"], 3, **keys.sections(f"m{number}")) for number in range(3)]
    role = KIND.build(settings[0])
    said = role.given.sign(Turn(1, 7, "p0", 1, False, 0, 0, 1.0, 1.0), 2)
    decode = KIND.channels(settings[1]).inputs["turns"].decode
    assert decode(Record("f.turns", 2, 0, None, TURN.encode(said))) == said
    for place, changes in ((3, {}), (2, {"number": 2}), (2, {"signature": b""}), (2, {"sender": "p1"})):
        with pytest.raises(BadRecord, match=r"forged|not_a_member"):
            decode(Record("f.turns", place, 0, None, TURN.encode(msgspec.structs.replace(said, **changes))))
    in_anothers_name = role.given.sign(msgspec.structs.replace(said, sender="p1", signature=b""), 2)
    with pytest.raises(BadRecord, match="'m0' may not speak for 'p1'"):
        decode(Record("f.turns", 2, 0, None, TURN.encode(in_anothers_name)))
