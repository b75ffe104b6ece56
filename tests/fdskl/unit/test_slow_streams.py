"""A slow stream is learnt from soon: few labels make the first iteration, few entities have to do for the
scale."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

from streamfl.fdskl.learning.losses import loss_named
from streamfl.fdskl.learning.newton import of_few, solve_block
from streamfl.fdskl.learning.schedule import ends_of_iterations
from streamfl.fdskl.tools.federation import KernelFederation, settings_of_all
from streamfl.simulation.system_tools import what_learning_waits_for

PARTIES, COLUMNS = ("a", "b", "c"), (("a0", "a1"), ("b0",), ("c0", "c1"))


def federation(rows: int, **sections: dict[str, Any]) -> KernelFederation:
    """Three parties with their defaults, but for few features."""
    random = np.random.default_rng(8)
    whole = random.normal(size=(rows, 5))
    learning = {"features_limit": 64, "block_features": 16, **sections.pop("learning", {})}
    settings = settings_of_all(PARTIES, federation={"seed": 3}, learning=learning, **sections)
    labels = (whole[:, 0] * whole[:, 2] > 0).astype(float)
    return KernelFederation(settings, [whole[:, :2], whole[:, 2:3], whole[:, 3:]], COLUMNS, labels)


def seconds_to_learn(found: KernelFederation, rows: int, rate: float) -> float:
    """Virtual seconds from the first label to the first model, where an entity and its label come every 1 /
    rate seconds."""
    begin = found.now
    for number in range(rows):
        found.write_samples([number])
        found.write_labels([number])
        # Whatever is waited for goes on meanwhile.
        until = begin + (number + 1) / rate
        found.run(until - found.now)
        if found.held.model.version:
            return found.now - begin
        found.now = max(found.now, until)
    return float("inf")


@pytest.mark.parametrize(("rate", "most"), [(0.1, 600.0), (10.0, 60.0)])
def test_the_first_model_comes_soon(rate: float, most: float) -> None:
    """Protects users of slow streams: with 1,024 entities and 256 labels wanted first, one a second was
    learnt from after 17 minutes."""
    found = federation(400)
    try:
        assert seconds_to_learn(found, 400, rate) <= most
        assert found.held.model.bandwidth is not None
    finally:
        found.close()


def test_a_history_of_fewer_entities_than_are_wanted_is_learnt_from() -> None:
    """Protects a topic of four partitions with 1,000 entities each, where no partition ever has the 1,024
    that are wanted."""
    found = federation(1000)
    try:
        found.write_samples(range(1000))
        found.write_labels(range(1000))
        found.run(60.0)
        assert found.virtual_seconds < 30
        assert found.held.labelled.fresh < 256
        assert found.held.model.version >= 6
        assert found.active.partition(0).standardisation.seen == 1000
    finally:
        found.close()


def test_each_iteration_takes_as_many_labels_as_all_before_it() -> None:
    """Protects the schedule: it is a function of the labels that were learnt from, so that a restart goes on
    with it."""
    assert list(islice(ends_of_iterations(32, 256), 7)) == [32, 64, 128, 256, 512, 768, 1024]
    assert list(islice(ends_of_iterations(5, 12), 5)) == [5, 10, 20, 32, 44]
    assert list(islice(ends_of_iterations(4, 4), 3)) == [4, 8, 12]
    found = federation(64, learning={"block_instances": 20, "first_instances": 6, "bandwidth": 2.0})
    versions = []
    try:
        for number in range(64):
            found.write_samples([number])
            found.run(30.0)
            found.write_labels([number])
            found.run(30.0)
            versions.append(found.held.model.version)
            found.restart("a")
            found.run(30.0)
    finally:
        found.close()
    due = [
        1 + place
        for place, (one, other) in enumerate(zip([0, *versions], versions, strict=False))
        if other > one
    ]
    assert due == [6, 12, 24, 44, 64]


def test_few_entities_are_penalised_as_many_are() -> None:
    """Protects the first models from learning noise by heart: the minimum over n < 1,024 entities has the
    penalty of 1,024."""
    random = np.random.default_rng(2)
    for rows in (20, 3000):
        features, labels = random.normal(size=(rows, 7)), random.normal(size=rows)
        zeros = np.zeros(7)
        found = solve_block(
            features, np.zeros(rows), labels, zeros, 7, of_few(0.01, rows), loss_named("square")
        )
        # sum_n (phi_n' a - y_n)^2 + max(n, 1024) lambda C / 2 |a|^2
        normal = 2 * features.T @ features + max(rows, 1024) * 0.01 * 7 * np.eye(7)
        np.testing.assert_allclose(found, np.linalg.solve(normal, 2 * features.T @ labels), rtol=1e-9)


def test_two_scales_of_the_same_entities_would_show_single_columns() -> None:
    """Protects the rule that a scale stays, by the attack that it prevents: distances of entities, which
    phases tell, are a metric of all columns together; two metrics with other scales of the same columns have
    the columns as their common directions."""
    random = np.random.default_rng(5)
    columns = random.normal(size=(300, 6)) @ random.normal(size=(6, 6))
    columns -= columns.mean(axis=0)
    first, later = (columns / columns[:count].std(axis=0) for count in (42, 300))
    # Up to a rotation nobody knows, which is what classical scaling of distances gives.
    seen = [rows @ np.linalg.qr(random.normal(size=(6, 6)))[0] for rows in (first, later)]

    def found(shown: np.ndarray[Any, Any]) -> float:
        """The worst column's correlation with the direction that is most like it."""
        return float(np.abs(np.corrcoef(columns.T, shown.T)[:6, 6:]).max(axis=1).min())

    mapped = np.linalg.lstsq(seen[0], seen[1], rcond=None)[0]
    _, directions = np.linalg.eigh(mapped @ mapped.T)
    assert found(seen[0] @ directions) > 0.9999
    assert max(found(rows) for rows in seen) < 0.9


def test_what_the_first_model_waits_for_is_said() -> None:
    """Protects the operator: predictions of 0.5 came for minutes, and nothing said why, nor how far it
    was."""
    found = federation(200)
    active, passive = found.active, found.roles["b"]
    found.run(0.1)
    assert (
        active.backlog
        == "knows 0 of 32 entities with a label that the first iteration takes (learning.first_instances)"
    )
    found.write_samples(range(200))
    found.write_labels(range(20))
    found.run(0.5)
    assert (
        passive.backlog
        == "knows 200 of 1,024 entities whose columns give their scale (standardisation.first_entities)"
    )
    assert (
        active.backlog
        == "knows 20 of 32 entities with a label that the first iteration takes (learning.first_instances)"
    )
    assert [one.text for one in what_learning_waits_for(found.settings, None, {}, active)] == [active.backlog]  # type: ignore[arg-type]
    assert {one.name: one.value for one in active.measure()}["missing_entities"] == 12
    found.write_labels(range(20, 40))
    found.run(0.5)
    assert "knows 40 of 32" in str(active.backlog)
    assert "waits for 200 of 1,024 entities, or 10 s, for the columns' scale" in str(active.backlog)
    found.run(30.0)
    assert found.held.model.version
    assert (active.backlog, passive.backlog) == (None, None)
    assert {one.name: one.value for one in active.measure()}["missing_entities"] == 0
    # No key leads to another partition: it says nothing of the federation.
    for role in (active, passive):
        role.open(1)
    assert (active.backlog, passive.backlog) == (None, None)


def test_a_party_that_is_away_is_named() -> None:
    """Protects the operator of the active party: for ten minutes, the default patience, it said "ok" and
    nothing else while another party was away."""
    found = federation(400)
    found.write_samples(range(200))
    found.write_labels(range(200))
    found.run(60.0)
    assert found.held.model.version
    found.stop("c")
    for number in range(200, 400):
        found.write_samples([number])
        found.write_labels([number])
        found.run(0.5)
    # Sums are passed on in a tree, so the active party hears nothing of c itself.
    assert str(found.active.backlog).startswith("waits for b (or c behind it) since ")
    assert str(found.roles["b"].backlog).startswith("waits for c since ")
    assert found.active.trouble is None
    found.restart("c")
    found.run(60.0)
    assert found.active.backlog is None


@pytest.mark.long
def test_labels_that_stop_are_told() -> None:
    """Protects the operator of the active party: its model stands still while it serves and predicts."""
    found = federation(400)
    for number in range(200):
        found.write_samples([number])
        found.write_labels([number])
        found.run(0.5)
        found.now += 0.5
    assert found.held.model.version
    assert "no label" not in str(found.active.backlog)
    for number in range(200, 400):
        found.write_samples([number])
        found.run(0.5)
        found.now += 0.5
    assert str(found.active.backlog).startswith("no label has come since ")
    assert str(found.active.backlog).endswith("longer than usual")
    found.write_labels([200])
    found.run(0.5)
    assert found.active.backlog is None
