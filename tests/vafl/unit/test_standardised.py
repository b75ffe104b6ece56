"""A party's inputs are standardised as they come, and a partition goes on as it began."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from vafl.makers import party_settings

from streamfl.configuration.settings import load_settings
from streamfl.contract.role import BadRecord, Received, Record, Send, StateChange
from streamfl.records.samples import Sample
from streamfl.runtime.kinds import find_kind
from streamfl.simulation.vertical.table import VerticalTable
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.messages import EMBEDDING
from streamfl.vafl.party.role import VaflParty
from streamfl.vafl.state_settings import party_state_settings
from streamfl.vafl.tools.run import run_vertical

# No later one is out of reach of the first two.
ROWS = np.array([[-4.0, -4.0], [4.0, 4.0], *np.random.default_rng(0).normal(size=(4, 2))]) * [3.0, 50.0] + [
    1.0,
    1000.0,
]


def party(**embedding: Any) -> VaflParty:
    """A network from a start that everybody knows, so that an embedding tells what it is made of."""
    sections: dict[str, Any] = {
        "federation": {"name": "f", "seed": 1, "parties": ["a"], "embedding_size": 3, "precision": "float64"},
        "role": {"kind": "vafl-party"},
        "party": {"name": "a"},
        "samples": {"topic": "t", "features": ["x", "y"]},
        "embedding": {"hidden": [4], "activation": "tanh", **embedding},
        "learning": {"seeded_start": True, "catch_up_samples": 0},
    }
    role = find_kind("vafl-party").build(load_settings(None, VaflSettings, sections))
    assert isinstance(role, VaflParty)
    role.open(0)
    return role


def shown(role: VaflParty, rows: Any, begin: int = 0) -> np.ndarray[Any, Any]:
    """The embeddings of these rows, (rows, 3)."""
    batch = []
    for number, row in enumerate(rows.tolist(), start=begin):
        record = Record("t", 0, number, b"e%d" % number, b"", (), 0.0)
        batch.append(Received("samples", Sample(f"e{number}", "", tuple(row), None), record))
    sends = [one for one in role.receive(batch, 10.0) if isinstance(one, Send)]
    return np.array([np.frombuffer(EMBEDDING.decode(one.value).values) for one in sends])


def made(role: VaflParty, rows: Any) -> np.ndarray[Any, Any]:
    """h of rows as they are, at the first parameters."""
    outputs: np.ndarray[Any, Any] = role.function.forward(role.parameters(0), np.asarray(rows)).outputs
    return outputs


def restarted(role: VaflParty, other: VaflParty) -> VaflParty:
    for change in list(role.changed_state()):
        other.restore(StateChange(change.channel, change.partition, change.key, change.value))
    return other


def standardised(rows: Any) -> np.ndarray[Any, Any]:
    """Each row by those up to it."""
    found = []
    for number in range(1, len(rows) + 1):
        deviation = rows[:number].std(axis=0)
        found.append(
            (rows[number - 1] - rows[:number].mean(axis=0))
            / np.where(deviation > 0, deviation, 1.0)
            / np.sqrt(2)
        )
    return np.clip(found, -3 / np.sqrt(2), 3 / np.sqrt(2))


@pytest.mark.parametrize("restart", [False, True])
def test_embeddings_are_of_the_scale_so_far(restart: bool) -> None:
    """Protects whoever writes columns as they are, and the scale over a restart."""
    role = party()
    found = [shown(role, ROWS[:3])]
    if restart:
        role = restarted(role, party())
    found.append(shown(role, ROWS[3:], 3))
    np.testing.assert_allclose(np.vstack(found), made(role, standardised(ROWS)), rtol=1e-12)


def test_a_partition_that_began_without_goes_on_without() -> None:
    """Protects an upgrade: a model that has learnt from columns as they come does not see others from one day
    to the next."""
    old = party(standardise=False)
    np.testing.assert_allclose(shown(old, ROWS[:3]), made(old, ROWS[:3]))
    role = restarted(old, party())
    # Before any sample comes: gradients of what is on its way are taken like this, too.
    np.testing.assert_allclose(role.embed(0, ROWS), made(role, ROWS))
    assert role._tasks[0].model._optimiser.learning_rate == 0.03
    np.testing.assert_allclose(shown(role, ROWS[3:], 3), made(role, ROWS[3:]))
    np.testing.assert_allclose(role.embed(0, ROWS), made(role, ROWS))


def test_a_partition_that_began_with_it_goes_on_with_it() -> None:
    """Protects a change of the setting, which is free to change: the model has learnt from inputs that were
    scaled."""
    role = party()
    shown(role, ROWS[:3])
    role = restarted(role, party(standardise=False))
    np.testing.assert_allclose(shown(role, ROWS[3:], 3), made(role, standardised(ROWS)[3:]), rtol=1e-12)


def test_the_scale_is_why_earlier_releases_refuse_the_state() -> None:
    """Protects who goes back: the layout names the releases. Without it a model would call the scale an array
    of another."""
    role = party()
    shown(role, ROWS[:3])
    scale = [change for change in role.changed_state() if change.key.startswith(b"array/moments/")]
    assert scale
    for change in scale:
        assert change.value is not None
        with pytest.raises(BadRecord, match="is not of this model"):
            party()._tasks[0].model._restore_array(change.key.removeprefix(b"array/"), change.value)
    assert party_state_settings(party_settings()).layout == 2


def test_other_entities_are_embedded_by_the_same_scale() -> None:
    """Protects figures on entities that are not learnt from."""
    role = party()
    shown(role, ROWS)
    scaled = (ROWS - ROWS.mean(axis=0)) / ROWS.std(axis=0) / np.sqrt(2)
    np.testing.assert_allclose(role.embed(0, ROWS), made(role, scaled), rtol=1e-9)


def test_it_is_refused_where_mu_would_not_count_it() -> None:
    """Protects mu: a scale of all entities would let each of them change what is said of the others."""
    private = {"embedding_norm": 1.0, "embedding_noise": 1.0, "secret_file": "s"}
    assert not party_settings(privacy=private).standardise
    with pytest.raises(Exception, match=r"embedding\.standardise = true has no meaning"):
        party_settings(privacy=private, embedding={"standardise": True})


@pytest.mark.parametrize(
    ("loss", "hidden", "given", "expected"),
    [
        ("logistic", [], {}, 0.5),
        ("logistic", [4], {}, 0.1),
        ("square", [], {}, 0.1),
        ("logistic", [], {"optimiser": "sgd"}, 0.03),
        ("logistic", [], {"learning_rate": 0.7}, 0.7),
    ],
)
def test_the_rate_that_is_left_out(
    loss: str, hidden: list[int], given: dict[str, Any], expected: float
) -> None:
    """Protects the table of rates that docs/reference/vafl.md says."""
    role = find_kind("vafl-party").build(
        party_settings(embedding={"hidden": hidden}, learning={"loss": loss, **given})
    )
    assert isinstance(role, VaflParty)
    assert role.settings.party_rate(role.settings.standardise) == expected


def test_the_rows_that_are_measured_on_keep_the_digits_that_records_have() -> None:
    """Protects the figures that simulate promises: in single precision a time in seconds has lost all that
    tells one row from another, and small numbers beside a column of large ones are zero."""
    plain = np.random.default_rng(1).normal(size=(300, 2))
    labels = (plain[:, 0] > plain[:, 1]).astype(float)
    settings = VaflSettings.model_validate(
        {
            "federation": {"name": "f", "seed": 1, "parties": ["a"], "embedding_size": 1},
            "role": {"kind": "vafl-coordinator"},
            "labels": {"topic": "l", "label": "y"},
        }
    )
    losses = [
        run_vertical(settings, VerticalTable([columns], labels, 60)).final.loss
        for columns in (plain, plain + np.array([1.7e9, 0.0]), plain * np.array([1.0, 1e-60]))
    ]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-4)


@pytest.mark.long
def test_linear_parties_learn_under_a_network() -> None:
    """Protects head.kind = "network" with its defaults: linear embeddings begin at 0, where a relu without a
    bias has no slope."""
    draws = np.random.default_rng(1)
    inputs = [draws.normal(size=(1200, 2)) for _ in range(2)]
    labels = (inputs[0][:, 0] * inputs[1][:, 0] > 0).astype(float)
    settings = VaflSettings.model_validate(
        {
            "federation": {"name": "f", "seed": 1, "parties": ["a", "b"], "embedding_size": 2},
            "role": {"kind": "vafl-coordinator"},
            "labels": {"topic": "l", "label": "y"},
            "head": {"kind": "network", "hidden": [16]},
        }
    )
    outcome = run_vertical(settings, VerticalTable(inputs, labels, 200), epochs=4)
    # Neither party's columns alone say anything.
    assert (outcome.final.accuracy or 0.0) > 0.8
