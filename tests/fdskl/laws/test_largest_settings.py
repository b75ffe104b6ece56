"""Parties at the largest sizes that their settings allow: what they accept can be written."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
from fdskl.makers import life_of, make_worker
from hypothesis import strategies as st
from largest_settings import LARGEST, Case, check_what_is_accepted_can_be_written, largest, written

from streamfl.contract.role import Received, Record, Send
from streamfl.encoding.wire import VERSION
from streamfl.fdskl.config import WORKER, FdsklSettings
from streamfl.fdskl.messages import CARRIED_BYTES, MOST_ENTITIES, NAMES_BYTES, PHASES
from streamfl.fdskl.sums.rounds import NAME_HEADER
from streamfl.runtime.kinds import find_kind
from streamfl.testing.bound_laws import what_is_refused
from streamfl.testing.role_laws import Extreme, Subject

ENTITIES = 6


def settings(party: str, parties: int, dimension: int = 1, **sections: dict[str, Any]) -> FdsklSettings:
    """Of a federation "f" with what these sections say besides; labels of two entities make an iteration."""
    learning = {"bandwidth": 1.0, "block_instances": 2, "window": ENTITIES, **sections.pop("learning", {})}
    labels = (
        {"labels": {"topic": "labels", "label": "y", "label_range": [-1000.0, 1000.0]}}
        if party == "p0"
        else {}
    )
    content = {
        "federation": {"name": "f", "parties": [f"p{number}" for number in range(parties)]},
        "role": {"kind": WORKER},
        "party": {"name": party},
        "samples": {"topic": "samples", "features": "x", "dimension": dimension},
        "learning": learning,
        "alignment": {"linger_ms": 0.0},
        "standardisation": {"first_entities": 2},
    }
    return FdsklSettings.model_validate({**content, **labels, **sections})


def users(made: FdsklSettings, extreme: Extreme) -> list[tuple[str, Record]]:
    """Columns and labels of some entities with names as long as they may be."""
    assert made.samples is not None
    names = [f"{place}{extreme.name}"[: len(extreme.name)] for place in range(ENTITIES)]
    rows = [[extreme.number / (place + 1)] * (made.samples.dimension or 1) for place in range(ENTITIES)]
    records = [written(name.encode(), {"x": row}) for name, row in zip(names, rows, strict=True)]
    if made.labels is not None:
        label = extreme.number if made.learning.loss == "square" else 1
        records += [written(name.encode(), {"y": label}, "labels") for name in names]
    # Once more, so that what was learnt is predicted with.
    return [*records, *records[:ENTITIES]]


def alone(size: str, bits: int = 32, **learning: Any) -> Case:
    """A party that is all of its federation, with as many features, as many in a block, or as many columns as
    it may have."""

    def make(number: int) -> FdsklSettings:
        sizes = {
            "features": ("features_limit",),
            "block": ("features_limit", "block_features"),
            "columns": (),
        }[size]
        blocks = {"block_features": 64 if number >= 64 else number} if size == "features" else {}
        few = {"features_limit": 4, "block_features": 2} if size == "columns" else {}
        return settings(
            "p0",
            1,
            dimension=number if size == "columns" else 1,
            learning={**learning, **few, **dict.fromkeys(sizes, number), **blocks},
            aggregation={"circle_bits": bits},
        )

    def anybody(made: Any, fingerprint: int, extreme: Extreme) -> Sequence[tuple[str, Record]]:
        return users(made, extreme)

    return Case(make, anybody)


CASES = {
    "features-64": alone("features", 64, visits=1000, sweeps=1),
    "block": alone("block", solver="sgd", loss="square"),
    "columns": alone("columns"),
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_is_accepted_can_be_written_at_the_limits_of_the_settings(case: Case) -> None:
    """Protects a party that its settings allow from ending at every start, or once it has learnt enough for a
    record too large."""
    check_what_is_accepted_can_be_written(case)


@pytest.mark.parametrize(("few", "bits"), [(True, 64), (False, 32)])
def test_the_sum_of_the_largest_round_can_be_written(few: bool, bits: int) -> None:
    """Protects a party from ending at a round that it answers: few entities of as many features as settings
    allow, or as many entities as a round names, with names as long as they may be.
    """

    def make(number: int) -> FdsklSettings:
        return settings(
            "p1",
            2,
            learning={"features_limit": number, "block_features": 1},
            aggregation={"circle_bits": bits},
        )

    made = make(largest(make))
    kind, role = find_kind(WORKER), make_worker(made)
    decode = {name: source.decode for name, source in kind.channels(made).inputs.items()}
    lives = [life_of(0, 5), life_of(1, 0)]

    def anybody(extreme: Extreme) -> list[tuple[str, Record]]:
        size = len(extreme.name.encode()) + NAME_HEADER
        count = 1 if few else min(MOST_ENTITIES, NAMES_BYTES // size)
        names = [f"{place:04}{extreme.name}"[: len(extreme.name)] for place in range(count)]
        features = 2 * made.learning.features_limit if few else CARRIED_BYTES // (count * bits // 8)
        incarnation = [
            VERSION,
            role.settings.fingerprint,
            "p0",
            lives[0].number,
            lives[0].public,
            1,
            lives[1].number,
        ]
        ranges = [[2**52 - features, features]]
        content = [
            VERSION,
            role.settings.fingerprint,
            "p0",
            [life.number for life in lives],
            7,
            PHASES,
            1.0,
            ranges,
            names,
        ]
        columns = [written(name.encode(), {"x": [extreme.number]}) for name in names[:2]]
        return [*columns, written(None, incarnation, "incarnations"), written(None, content, "rounds")]

    subject = Subject(
        make=functools.partial(make_worker, made), traffic=st.nothing(), anybody=anybody, decode=decode
    )
    for extreme in LARGEST:
        assert not what_is_refused(subject, anybody(extreme))
        assert _largest_sum(subject, anybody(extreme)) > CARRIED_BYTES * (0.5 if few else 0.9)


def _largest_sum(subject: Subject, records: Sequence[tuple[str, Record]]) -> int:
    """Bytes of the sum that is sent: the test is of rounds that are answered."""
    role, now = subject.make(), 1000.0
    role.open(0)
    batch = [Received(channel, subject.decode[channel](record), record) for channel, record in records]
    # Mean and deviation are fixed when columns have been waited for, and answers follow.
    replies = [*role.receive(batch, now), *role.receive([], now + 11.0), *role.receive([], now + 12.0)]
    return max(
        (len(one.value) for one in replies if isinstance(one, Send) and one.channel == "sums/p0"), default=0
    )
