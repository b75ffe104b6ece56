"""One row changes, and everything that is released is forced to be the same: then nothing else may show that
it changed."""

from __future__ import annotations

import math
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from dp_frank_wolfe.party_driver import COLUMNS, NAMES, ROWS, Driver, settings, table

from streamfl.contract.role import OperatorNotice
from streamfl.dp_frank_wolfe.messages import OtherRows
from streamfl.privacy.anchor import HEADER_BYTES
from streamfl.privacy.integer_noise import IntegerNoise

ENTITY = 7
VALUES: dict[str, list[Any]] = {
    "other numbers": [0.3] * COLUMNS,
    "beyond every bound": [1e9] * COLUMNS,
    "nulls": [None] * COLUMNS,
    "texts": ["a long text instead of a number"] * COLUMNS,
    "a list": [[1, 2, 3]] * COLUMNS,
    "too few": [0.1] * (COLUMNS - 1),
    "far too large": [1e300] * COLUMNS,
}
# As they lie in a topic.
CONTENTS = [
    b"",
    b"no JSON at all {",
    b"[]",
    b"5",
    b"{}",
    b"\xff" * 5000,
    b" " * 2_000_000,
    b'{"x0": 1e400, "x1": 0.5, "x2": 0.5, "x3": 0.5}',
    b'{"x0": NaN, "x1": 0.5, "x2": 0.5, "x3": 0.5}',
    b'{"x0": 0.5, "x1": -Infinity, "x2": 0.5, "x3": true}',
    b'{"x0": 0.5, "x1": 0.5, "x2": 0.5, "x3": 0.5, "x4": 0.5}',
    b'{"x0": 0.5, "x1": 0.5, "x2": 0.5, "x3": 0.5, "note": "' + b"x" * 5000 + b'"}',
]


@dataclass
class Seen:
    """All that leaves a party: messages, what it tells its operator, and how much it writes where."""

    sent: list[bytes] = field(default_factory=list)
    figures: list[tuple[str, object, float]] = field(default_factory=list)
    notices: list[OperatorNotice] = field(default_factory=list)
    written: list[tuple[str, bytes, int | None]] = field(default_factory=list)
    times: list[float | None] = field(default_factory=list)
    trouble: list[str | None] = field(default_factory=list)


class _Fixed:
    def draw(self, bits: bytes) -> np.ndarray:
        return np.array([2])


def life(
    folder: Path, estimator: str, values: list[Any] | bytes, label: Any, monkeypatch: pytest.MonkeyPatch
) -> Seen:
    """A party's life with these values of one entity; every choice and every noisy number is the same
    whatever they are."""
    with monkeypatch.context() as patch:
        patch.setattr(IntegerNoise, "add", lambda noise, values, bits: np.arange(len(values), dtype=np.int64))
        for module in ("party.fit", "party.selection"):
            patch.setattr(
                f"streamfl.dp_frank_wolfe.{module}.exponential_mechanism", lambda scores, rate: _Fixed()
            )
        serving = {"mode": "private", "predictions": 2}
        own = settings(folder, learning={"estimator": estimator}, serving=serving)
        # The same ledger, from its beginning: of a head that others see nothing follows from what was noted
        # before.
        os.truncate(folder / "ledger", HEADER_BYTES)
        party, seen = Driver(own), Seen()
        features, labels = table()
        rows = [party.sample(name, row.tolist()) for name, row in zip(NAMES, features, strict=True)]
        told = [party.label(name, float(given)) for name, given in zip(NAMES, labels, strict=True)]
        if isinstance(values, bytes):
            rows[ENTITY] = party.record("samples", NAMES[ENTITY], values)
        else:
            rows[ENTITY] = party.sample(NAMES[ENTITY], values)
        told[ENTITY] = party.label(NAMES[ENTITY], label)
        others = OtherRows(np.ones((ROWS, 2)).tobytes())
        asks = {
            "frank-wolfe": [party.ask(0, others=np.ones(8)), party.ask(1)],
            "marginal": [party.server("choose", 1, 0, b"")],
            "two-round": [party.server("choose", 1, 0, b""), party.server("rows", 1, 0, others)],
        }[estimator]
        batches: list[Any] = [[*rows, *told], [], None, *([ask] for ask in asks)]
        # The entity comes again, and is predicted.
        batches += [[party.model([0.1, 0, 0, 0])], [rows[ENTITY]], []]
        for batch in batches:
            before = dict(party.state)
            # A manifest is of what was announced.
            sent = party.feed([party.manifest()] if batch is None else batch)
            seen.sent += map(msgspec.msgpack.encode, sent)
            seen.notices += party.role.notices()
            seen.times.append(party.role.wake_at)
            seen.trouble.append(party.role.trouble)
            seen.figures += [(one.name, one.labels, one.value) for one in party.role.measure()]
            for channel, key in before.keys() | party.state.keys():
                if before.get((channel, key)) != party.state.get((channel, key)):
                    value = party.state.get((channel, key))
                    seen.written.append((channel, key, None if value is None else len(value)))
        assert party.rejections == []
    seen.written.sort(key=str)
    return seen


@pytest.mark.parametrize("estimator", ["frank-wolfe", "marginal", "two-round"])
def test_nothing_but_releases_tells_of_a_row(
    tmp_path: Path, estimator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects a row from everything that epsilon does not cover: messages and their sizes, figures, notices,
    times, what is kept.

    The row is of other numbers, beyond every bound, not readable, or not there at all.
    """
    features, labels = table()
    wanted = life(tmp_path, estimator, features[ENTITY].tolist(), float(labels[ENTITY]), monkeypatch)
    assert len(wanted.sent) >= 3
    assert len([one for one in wanted.sent if b"partial" in one]) == 1
    for values in VALUES.values():
        assert life(tmp_path, estimator, values, 0.9, monkeypatch) == wanted
    for content in CONTENTS:
        assert life(tmp_path, estimator, content, None, monkeypatch) == wanted
    for label in (-0.9, 1e9, "a text", 2_000_000 * "x", math.inf, [], True):
        assert life(tmp_path, estimator, features[ENTITY].tolist(), label, monkeypatch) == wanted


def test_the_chain_is_of_what_others_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects rows from whoever tries out contents until a hash fits: no digest of a window leaves the
    party, and the file that holds one is nobody else's.
    """
    features, _ = table()
    first = life(tmp_path, "frank-wolfe", features[ENTITY].tolist(), 0.5, monkeypatch)
    links = (tmp_path / "ledger").read_bytes()
    assert life(tmp_path, "frank-wolfe", [None] * COLUMNS, 0.5, monkeypatch).sent == first.sent
    assert (tmp_path / "ledger").read_bytes() != links
    assert stat.S_IMODE((tmp_path / "ledger").stat().st_mode) == 0o600
