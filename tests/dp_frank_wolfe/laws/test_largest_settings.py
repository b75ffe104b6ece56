"""Party and server at the largest sizes that their settings allow: whatever they accept can be remembered and
sent."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from largest_settings import Case, check_what_is_accepted_can_be_written, written

from streamfl.contract.role import Record
from streamfl.dp_frank_wolfe.config import PARTY, SERVER, DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.messages import Answers, Entities, Frozen, VertexAnswer, content_of
from streamfl.encoding.wire import VERSION
from streamfl.testing.role_laws import Extreme

LONGEST_PARTY = 64
LONGEST_ENTITY = 256


def settings(
    member: str, parties: int = 2, columns: int = 1, **sections: dict[str, Any]
) -> DPFrankWolfeSettings:
    """Of a party or the server of a federation whose parties have names as long as they may be."""
    names = [f"p{number:02}".ljust(LONGEST_PARTY, "-") for number in range(parties)]
    content: dict[str, Any] = {
        "federation": {"name": "f", "parties": names, "columns": dict.fromkeys(names, columns)},
        "role": {"kind": member},
        "window": {"rows": 2, "limit": 10, **sections.pop("window", {})},
        "privacy": {"epsilon": 8.0, "delta": 1e-9, "insecure_test_noise": True},
        "learning": {
            "estimator": "frank-wolfe",
            "columns": parties,
            "iterations": 2,
            "sketch_rows": 4,
            **sections.pop("learning", {}),
        },
    }
    if member == PARTY:
        content["party"] = {"name": names[0]}
        content["samples"] = {"topic": "samples", "features": "x", "dimension": columns}
        content["labels"] = {"topic": "labels", "label": "y"}
    return DPFrankWolfeSettings.model_validate({**content, **sections})


def fingerprint(made: Any) -> int:
    return Public(made).fingerprint


def users(made: Any, _fingerprint: int, extreme: Extreme) -> Sequence[tuple[str, Record]]:
    """Columns and labels of some entities with names as long as they may be."""
    each = len(extreme.name[0].encode())
    names = [f"{place}{extreme.name[: (LONGEST_ENTITY - 1) // each]}".encode() for place in range(4)]
    row = [extreme.number] + [0.1] * (made.samples.dimension - 1)
    records = [written(name, {"x": row}) for name in names]
    return [*records, *(written(name, {"y": 1}, "labels") for name in names)]


def announced(made: Any, of: int, _extreme: Extreme) -> Sequence[tuple[str, Record]]:
    """All parties announce a window of the longest names, freeze it, and answer."""
    names = sorted(f"{place}".ljust(LONGEST_ENTITY, "x") for place in range(made.window.rows))
    manifest = digest_of(names)
    found = []
    for party in made.federation.parties:
        for kind, window, iteration, content in (
            ("entities", 0, 1, content_of(Entities(names, 2**53 - len(names)))),
            ("frozen", 1, 0, content_of(Frozen(manifest))),
        ):
            message = [VERSION, of, party, window, iteration, kind, 0, b"", content]
            found.append(written(None, message, f"releases/{party}"))
    found.sort(key=lambda one: b"frozen" in (one[1].value or b""))
    public, numbers = Public(made), made.sketch_numbers
    for number, block in enumerate(public.blocks):
        answer = VertexAnswer(number, block.columns[-1], True, np.ones(numbers, "<i8").tobytes())
        message = [VERSION, of, block.party, 1, 0, "answers", 0, b"", content_of(Answers([answer], None))]
        found.append(written(None, message, f"releases/{block.party}"))
    return found


def digest_of(names: Sequence[str]) -> bytes:
    """Of a manifest, as a party says it."""

    return hashlib.sha256(msgspec.msgpack.encode([list(names)])).digest()


CASES = {
    "party-columns": Case(lambda size: settings(PARTY, columns=size), users, fingerprint),
    "party-parties": Case(lambda size: settings(PARTY, size), users, fingerprint),
    "server-parties": Case(lambda size: settings(SERVER, size), announced, fingerprint),
    "server-columns": Case(lambda size: settings(SERVER, columns=size), announced, fingerprint),
    "server-sketch": Case(
        lambda size: settings(SERVER, learning={"sketch_rows": size}), announced, fingerprint
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_is_accepted_can_be_written_at_the_limits_of_the_settings(case: Case) -> None:
    """Protects a member that its settings allow from ending at every start."""
    check_what_is_accepted_can_be_written(case)
