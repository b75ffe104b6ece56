"""What a party's role releases, over many secrets: as likely as the plan says, and on neighbouring tables
within what is charged.

The arithmetic alone is tried in test_lower_bound. Here the whole way is: records, manifest, frozen window,
secret, ask, answer."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_frank_wolfe.party_driver import COLUMNS, NAMES, ROWS, Driver, settings
from scipy.stats import chisquare

from streamfl.contract.role import Received
from streamfl.dp_frank_wolfe.messages import Answers, Message, read_content
from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE, RESIDUAL_ONE

SECRETS = 500
# So that a single choice and a single sketch have most of the budget, and a wrong strength is seen in few
# draws.
EPSILON = 20.0
# Of the bounds: by its sign, neighbours that are told apart as well as any.
CORNER = np.array([1.0, -1.0, -1.0, -1.0])
Drawn = tuple[Counter[int], list[np.ndarray]]


def begun(folder: Path, row: Any) -> Driver:
    """A frozen window, not centred, in which all rows are zeros but the first, which has a label of 1."""
    folder.mkdir()
    # Noise depends on what a ledger is made with. So that a run draws what any other draws, it is the same
    # each time.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_bytes", bytes)
        driver = Driver(
            settings(
                folder,
                privacy={"epsilon": EPSILON},
                learning={
                    "iterations": 1,
                    "columns": 2,
                    "sketch_rows": 8,
                    "intercept": False,
                },
            )
        )
    features, labels = np.zeros((ROWS, COLUMNS)), np.zeros(ROWS)
    features[0], labels[0] = row, 1.0
    batch = [driver.sample(name, own.tolist()) for name, own in zip(NAMES, features, strict=True)]
    driver.feed(batch + [driver.label(name, float(label)) for name, label in zip(NAMES, labels, strict=True)])
    driver.tick()
    assert [message.kind for message in driver.hear(driver.manifest())] == ["frozen"]
    return driver


def drawn(folder: Path, sign: int) -> Drawn:
    """Chosen vertices by their number, and what is shown of the column, of the same ask under many secrets.

    The ask is one of a server that wants to find out as much as it can: by it the row's prediction is as far
    off as R allows."""
    driver = begun(folder, sign * CORNER)
    others = -1e6 * FEATURE_ONE * driver.public.sketch(1).apply(one_row())
    chosen: Counter[int] = Counter()
    shown = []
    for message in released(driver, folder, driver.ask(0, others=others)):
        [answer] = read_content(message.content, Answers).answers
        chosen[answer.column + (0 if answer.positive else COLUMNS)] += 1
        shown.append(
            np.frombuffer(answer.sums, "<i8").astype(float) - expected_sums(driver, sign, answer.column)
        )
    return chosen, shown


def released(driver: Driver, folder: Path, ask: Received) -> Iterator[Message]:
    """The answer to the same ask, under one secret after another."""
    frozen, noted = dict(driver.state), (folder / "ledger").read_bytes()
    for number in range(SECRETS):
        (folder / "secret").write_bytes(hashlib.sha256(b"secret %d" % number).digest())
        # As another party would begin from the same window: nothing but the secret is another.
        (folder / "ledger").write_bytes(noted)
        driver.state = dict(frozen)
        driver.start()
        [message] = driver.feed([ask], commit=False)
        yield message


def one_row() -> np.ndarray:
    row = np.zeros(ROWS, dtype=np.int16)
    row[0] = 1
    return row


def expected_sums(driver: Driver, sign: int, column: int) -> Any:
    """H a of the column, in the noise's unit."""
    noise = driver.public.fit_plan("a", 1).noise
    assert noise is not None
    own = sign * (1 if column == 0 else -1) * FEATURE_ONE
    return own * driver.public.sketch(1).apply(one_row()).astype(float) / noise.unit


def probabilities(driver: Driver, sign: int, strength: float = 1.0) -> Any:
    """The exponential mechanism by floating point: a_i (y - prediction) for +e_i, and the opposite for
    -e_i."""
    rate = driver.public.fit_plan("a", 1).rate
    assert rate is not None
    # The label is 1 and the prediction -R = -1.
    gain = 2.0 * FEATURE_ONE * RESIDUAL_ONE * sign * CORNER
    weights = np.exp(strength * float(rate) * np.concatenate([gain, -gain]))
    return weights / weights.sum()


@contextmanager
def without_waiting() -> Iterator[None]:
    """Hundreds of ledger files that nobody takes up again need not be on the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(name="runs", scope="module")
def _runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Drawn]:
    folder = tmp_path_factory.mktemp("loss")
    with without_waiting():
        return {sign: drawn(folder / str(sign), sign) for sign in (1, -1)}


def test_choices_of_roles_are_those_of_the_plan(runs: dict[int, Drawn], tmp_path: Path) -> None:
    """Protects the claim on its way through the role: choices under 500 secrets are as likely as the plan's
    rate says.

    With half the noise, or twice, they would be others, and the test would say so.
    """
    driver = begun(tmp_path / "one", CORNER)
    for sign, (chosen, _) in runs.items():
        counts = np.array([chosen[vertex] for vertex in range(2 * COLUMNS)])
        assert chisquare(counts, SECRETS * probabilities(driver, sign)).pvalue > 1e-6
        for strength in (2.0, 0.5):
            assert chisquare(counts, SECRETS * probabilities(driver, sign, strength)).pvalue < 1e-6


def test_neighbouring_tables_are_told_apart_no_better_than_is_charged(
    runs: dict[int, Drawn], tmp_path: Path
) -> None:
    """Protects an entity from a server that asks what tells most: the range of the log-ratios is at most
    eps0, and nearly that."""
    rate = begun(tmp_path / "one", CORNER).public.fit_plan("a", 1).rate
    assert rate is not None
    charged = 2 * float(rate) * 2 * FEATURE_ONE * 2 * RESIDUAL_ONE
    counts = {
        sign: np.array([chosen[vertex] for vertex in range(2 * COLUMNS)])
        for sign, (chosen, _) in runs.items()
    }
    # By what the row does to them there are two kinds of vertices.
    better = np.array([True, False, False, False, False, True, True, True])
    one, other = (np.log(counts[sign][better].sum() / counts[sign][~better].sum()) for sign in (1, -1))
    assert 0.8 * charged < one - other < 1.15 * charged


def test_sketches_of_roles_have_the_noise_of_the_plan(runs: dict[int, Drawn], tmp_path: Path) -> None:
    """Protects columns that are shown: over secrets, what is shown is the column's sums with noise of the
    plan's deviation."""
    noise = begun(tmp_path / "one", CORNER).public.fit_plan("a", 1).noise
    assert noise is not None
    for _, shown in runs.values():
        deviation = float(noise.deviation) / noise.unit
        error = np.concatenate(shown)
        assert abs(error.mean()) < 5 * deviation / np.sqrt(len(error))
        assert error.std() == pytest.approx(deviation, rel=0.06)
