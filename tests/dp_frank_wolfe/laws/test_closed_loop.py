"""Parties and server as roles come to what the arithmetic alone comes to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_frank_wolfe.federations import ROWS, SERVER_MEMBER, parties_of, settings_of
from dp_frank_wolfe.laws.closed_loop import ClosedLoop
from dp_frank_wolfe.problems import real

from streamfl.dp_frank_wolfe.roles import ROLES

EXACT: dict[str, Any] = {"epsilon": float("inf")}
MANY_ROWS: dict[str, Any] = {"window": {"rows": 999_999}, "privacy": {"delta": 1e-9}}


def federation(parties: int = 2, folder: Path | None = None, **sections: dict[str, Any]) -> ClosedLoop:
    names = [*parties_of(parties), SERVER_MEMBER]
    return ClosedLoop({name: settings_of(name, parties, folder, **sections) for name in names})


def names_of(count: int = ROWS, first: int = 0) -> list[str]:
    return [f"person {number:03d}" for number in range(first, first + count)]


def fitted(parties: int = 2, folder: Path | None = None, **sections: dict[str, Any]) -> ClosedLoop:
    loop = federation(parties, folder, **sections)
    loop.write_rows(names_of())
    loop.settle()
    return loop


def assert_is(loop: ClosedLoop, x: dict[str, Any]) -> None:
    """To the last bit but for the sign of a 0, and nobody was refused."""
    assert loop.rejections() == []
    for party, own in loop.models().items():
        np.testing.assert_array_equal(own, x[party])


@pytest.mark.parametrize("parties", [1, 2, 3])
@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"learning": {"blocks": 2, "sampling": "nice", "sampled_blocks": 2, "iterations": 9}},
        {"learning": {"sampling": "uniform", "candidates": 2, "iterations": 12}},
        {"privacy": EXACT, "learning": {"sketch": "identity", "iterations": 15, "columns": 12}},
        {
            "privacy": EXACT,
            "learning": {"blocks": 2, "sampling": "distributed", "iterations": 15, "columns": 12},
        },
    ],
)
def test_a_fit_is_the_arithmetic(sections: dict[str, Any], parties: int) -> None:
    """Protects what is learnt and released: messages, windows, ledger and state change no bit of it."""
    loop = fitted(parties, **sections)
    expected = loop.direct()
    assert_is(loop, expected.x)
    assert loop.server.model == 1
    assert loop.server.estimator.uplink_numbers == expected.uplink_numbers
    # Beside what the fit releases, a mean of each column, and of the label by each party.
    means = loop.centred().uplink_numbers
    assert means == parties * 5
    released = sum(loop.members[party].role.counts.uplink_numbers for party in loop.parties) - means
    # Signed indices, and N columns of m numbers. At the cap a block without a shown column has none to
    # choose.
    public, learning = loop.public, loop.public.settings.learning
    most = sum(public.sampling.answers_of(party, 1, learning.iterations) for party in loop.parties)
    indices = sum(len(step.chosen) for step in expected.steps)
    assert (
        released == expected.uplink_numbers == indices + len(expected.sums) * public.settings.sketch_numbers
    )
    assert indices == most or learning.blocks > 1
    codec, counts = loop.server.codec, loop.members[SERVER_MEMBER].role.counts
    told = [codec.decode(value) for name, _, _, value in loop.committed if name != SERVER_MEMBER]
    assert counts.uplink_bytes == sum(len(one.content) for one in told if one.kind == "answers") + 8 * means
    assert (counts.uplink_numbers, counts.signed_indices) == (released + means, indices)
    assert {one.name: one.value for one in loop.server.measure()}["fit_uplink_numbers"] == released + means


def test_noise_that_nobody_knows_is_that_of_the_secret(tmp_path: Path) -> None:
    """Protects the private path: with secrets and ledger files the fit is what the arithmetic makes of the
    same secrets."""
    loop = fitted(2, tmp_path)
    for party in loop.parties:
        assert loop.party(party).given.secret == (tmp_path / f"{party}.secret").read_bytes()
    assert_is(loop, loop.direct().x)
    assert np.any(loop.models()["party-0"])


@pytest.mark.parametrize("privacy", [{}, EXACT])
@pytest.mark.parametrize("parties", [1, 2, 4])
@pytest.mark.parametrize("estimator", ["marginal", "two-round"])
def test_a_selection_is_the_arithmetic(estimator: str, parties: int, privacy: dict[str, Any]) -> None:
    """Protects the estimators that choose once, likewise."""
    loop = fitted(parties, learning={"estimator": estimator, "radius": 0.8}, privacy=privacy)
    assert_is(loop, loop.estimate().x)
    assert 0 < loop.server.estimator.support <= 4
    assert loop.server.estimator.l1_norm <= 0.8 * (1 + 1e-12)


@pytest.mark.parametrize("parties", [1, 3])
def test_without_privacy_it_is_block_frank_wolfe_in_one_place(parties: int) -> None:
    """Protects the whole from its own arithmetic: the paper's algorithm once more, on all columns together,
    to 1e-12."""
    iterations = 25
    loop = fitted(
        parties,
        privacy=EXACT,
        learning={"sketch": "identity", "iterations": iterations, "columns": 12, "blocks": 2},
    )
    columns, labels = real(loop.centred().windows)
    each = columns.shape[1] // (2 * parties)
    x = np.zeros(columns.shape[1])
    for t in range(iterations):
        gradient = columns.T @ (columns @ x - labels) / len(labels)
        x *= 1 - 2 / (t + 2)
        for block in range(2 * parties):
            best = block * each + int(np.argmax(np.abs(gradient[block * each : (block + 1) * each])))
            x[best] -= 2 / (t + 2) / (2 * parties) * np.sign(gradient[best])
    np.testing.assert_allclose(np.concatenate(list(loop.models().values())), x, atol=1e-12)


def test_who_reads_and_writes_what() -> None:
    """Protects access rights: a topic for each party and direction, one model for users, predictions where
    there are any."""
    for mode in ("off", "exact", "private"):
        own = {
            name: settings_of(name, 2, serving={"mode": mode})
            for name in ("party-0", "party-1", SERVER_MEMBER)
        }
        kind = {name: ROLES[given.role.kind] for name, given in own.items()}
        server = kind[SERVER_MEMBER].channels(own[SERVER_MEMBER])
        party = kind["party-1"].channels(own["party-1"])
        assert {one.topic for one in server.inputs.values()} == {"f.party-0.releases", "f.party-1.releases"}
        served = {"f.predictions"} if mode != "off" else set()
        assert set(server.outputs.values()) == {"f.party-0.asks", "f.party-1.asks", "f.model", *served}
        assert {one.topic for one in party.inputs.values()} == {"party-1-samples", "labels", "f.party-1.asks"}
        assert set(party.outputs.values()) == {"f.party-1.releases"}
        specs = {one.name: one for one in kind[SERVER_MEMBER].topics(own[SERVER_MEMBER])}
        assert {one.name for one in specs.values() if one.compacted} == {
            "f.model",
            "f.dp-frank-wolfe-server.state",
        }
        assert bool(specs["f.party-0.releases"].caution) == (mode == "exact")


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"learning": {"estimator": "marginal", "columns": 5000}}, "can solve for 4096 at most"),
        ({"learning": {"estimator": "two-round", "columns": 300}, **MANY_ROWS}, "hold in memory"),
        ({"learning": {"columns": 30_000}}, "less than or equal to 20000"),
    ],
)
def test_what_a_server_cannot_hold_is_refused_at_the_start(sections: dict[str, Any], text: str) -> None:
    """Protects a server from settings that it would fail under in the middle of a fit."""
    with pytest.raises(ValueError, match=text):
        settings_of(SERVER_MEMBER, 2, **sections)
