"""One entity's values changed, under the same releases: nothing else that anybody sees may change with
them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_frank_wolfe.laws.troubled_loop import S, TroubledLoop, settings_of

from streamfl.dp_frank_wolfe.learning import selection
from streamfl.dp_frank_wolfe.party import fit as party_fit
from streamfl.privacy.integer_noise import IntegerNoise

ROWS, COLUMNS = 20, 3
ENTITY = "e7"
GOOD: dict[str, Any] = {"x0": 0.25, "x1": -0.5, "x2": 0.125}
# What else could stand in the place of the entity's record of columns at one party.
COLUMNS_INSTEAD: dict[str, bytes] = {
    "others": json.dumps({"x0": -1.0, "x1": 1.0, "x2": 0.7}).encode(),
    "zeros": json.dumps(dict.fromkeys(GOOD, 0.0)).encode(),
    "beyond the bound": json.dumps(dict.fromkeys(GOOD, 50.0)).encode(),
    "huge": json.dumps({**GOOD, "x1": 1.7e308}).encode(),
    "beyond floats": b'{"x0": 1e400, "x1": 0.5, "x2": 0.5}',
    "NaN": b'{"x0": NaN, "x1": 0.5, "x2": 0.5}',
    "infinity": b'{"x0": 0.5, "x1": -Infinity, "x2": 0.5}',
    "text": json.dumps({**GOOD, "x0": "many"}).encode(),
    "null": json.dumps({**GOOD, "x2": None}).encode(),
    "a list": json.dumps({**GOOD, "x2": [1, 2]}).encode(),
    "true": json.dumps({**GOOD, "x2": True}).encode(),
    "missing": json.dumps({"x0": 0.25}).encode(),
    "one more": json.dumps({**GOOD, "x3": 0.25}).encode(),
    "nothing": b"{}",
    "no object": b"[0.25, -0.5, 0.125]",
    "a number": b"5",
    "no JSON": b"\xff\x00 these are no numbers",
    "empty": b"",
    "long": json.dumps({**GOOD, "note": 5_000 * "x"}).encode(),
}
LABEL_INSTEAD: dict[str, bytes] = {
    "another": b'{"y": -0.75}',
    "beyond the bound": b'{"y": 1e12}',
    "NaN": b'{"y": NaN}',
    "text": b'{"y": "ill"}',
    "null": b'{"y": null}',
    "missing": b"{}",
    "no JSON": b"ill",
    "empty": b"",
}


class SameRelease:
    """A choice that follows from the bits' length alone, whatever the scores are."""

    def __init__(self, candidates: int) -> None:
        self._candidates = candidates

    def draw(self, bits: bytes) -> np.ndarray:
        return np.full(len(bits) // 16, self._candidates // 2, dtype=np.int64)


@contextmanager
def same_releases() -> Iterator[None]:
    """Choices and noisy numbers are the same whatever lies under them: what differs then is told by something
    else."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (party_fit, selection):
            patch.setattr(module, "exponential_mechanism", lambda scores, rate: SameRelease(len(scores)))
        patch.setattr(IntegerNoise, "add", lambda self, values, bits: np.arange(len(values), dtype=np.int64))
        yield


def seen(
    folder: Path, estimator: str, columns: bytes | None, label: bytes | None
) -> tuple[TroubledLoop, list[Any], list[Any]]:
    """A federation with this in the place of the entity's records at one party; its figures at any time, and
    its state's sizes."""
    folder.mkdir()
    members = {
        name: settings_of(
            folder, name, learning={"estimator": estimator}, privacy={"insecure_test_noise": True}
        )
        for name in ("p1", "p2", S)
    }
    loop = TroubledLoop(members, seed=3)
    for row in range(ROWS + 3):
        name = f"e{row}"
        if name != ENTITY:
            loop.write_row(name, row)
            continue
        loop.write("p1-samples", name.encode(), json.dumps(GOOD).encode() if columns is None else columns)
        loop.write("p2-samples", name.encode(), json.dumps(GOOD).encode())
        loop.write("labels", name.encode(), b'{"y": 0.5}' if label is None else label)
    figures: list[Any] = []
    with same_releases():
        for _ in range(400):
            moved = sum([loop.step(name, most=7) for name in members])
            loop.now += 0.01
            for member in loop.members.values():
                figures.append(sorted((one.name, one.labels, one.value) for one in member.role.measure()))
                figures.append([(one.reason, one.text) for one in member.role.notices()])
                figures.append(
                    (
                        member.role.wake_at,
                        member.role.trouble,
                        dict(member.role.waiting),
                        len(member.rejections),
                    )
                )
            if not moved and len(models(loop)) == 2:
                break
    changes = [
        change for member in loop.members.values() for commit in member.changes for change in (*commit, None)
    ]
    # Whoever runs the cluster sees sizes.
    return (
        loop,
        figures,
        [None if one is None else (one.channel, one.key, len(one.value or b"")) for one in changes],
    )


def models(loop: TroubledLoop) -> list[bytes]:
    return [value for _, name, topic, _, value in loop.committed if name == S and topic == "f.model"]


CASES = [(what, content, None) for what, content in COLUMNS_INSTEAD.items()]
CASES += [(f"label {what}", None, content) for what, content in LABEL_INSTEAD.items()]


@pytest.mark.long
@pytest.mark.parametrize("estimator", ["frank-wolfe", "marginal", "two-round"])
def test_nothing_but_releases_depends_on_values(estimator: str, tmp_path: Path) -> None:
    """Protects every entity: whatever is in its records, manifests, counts, times, metrics, notices and sizes
    are the same."""
    usual, *usual_rest = seen(tmp_path / "usual", estimator, None, None)
    assert len(models(usual)) == 2
    differing = {}
    for number, (what, columns, label) in enumerate(CASES):
        loop, *rest = seen(tmp_path / f"{number}", estimator, columns, label)
        parts = ("records", "figures", "sizes")
        pairs = zip(parts, (usual.committed, *usual_rest), (loop.committed, *rest), strict=True)
        wrong = [part for part, one, other in pairs if one != other]
        if wrong:
            differing[what] = wrong
    assert not differing
