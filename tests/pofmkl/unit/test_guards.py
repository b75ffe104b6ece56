"""What keeps a federation going when budgets are small or numbers diverge."""

from __future__ import annotations

import numpy as np
import pytest
from pofmkl.makers import new_server, staleness

from streamfl.contract.role import BadRecord, Received, Record, Rejection, StateChange
from streamfl.encoding.wire import VERSION, decode_array, encode_array
from streamfl.pofmkl.client.model import LARGEST_PARAMETERS, ModelTable
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.learning.gradient_steps import StochasticGradientStep
from streamfl.pofmkl.messages import (
    KERNEL_PARAMETERS,
    UPDATE,
    KernelParameters,
    ShardVersion,
    Update,
    kernel_key,
)
from streamfl.pofmkl.server.role import PofmklServer
from streamfl.pofmkl.tools.federation import simulate
from streamfl.records.samples import SampleReader, SamplesSection


def update(
    client: str,
    sequence: int,
    step: float,
    *,
    epoch: int = 1,
    version: int = 0,
    dimension: int = 2,
    at: float = 0.0,
) -> Received:
    """An update of kernel 0 with two features, written to its topic at a time, as it arrives."""
    steps = encode_array(np.full((1, 4), step, np.float32))
    message = Update(VERSION, 0, dimension, client, epoch, sequence, version, 1, (0,), steps)
    return Received(
        "updates",
        message,
        Record("updates", 0, sequence, client.encode(), UPDATE.encode(message), timestamp=at),
    )


def server(lockstep: bool) -> PofmklServer:
    role = new_server(
        clients=2, kernels=1, features=2, dimension=2, learning={"staleness": staleness(lockstep)}
    )
    role.open(0)
    return role


@pytest.mark.parametrize(("staleness", "most"), [("lockstep", None), ("bounded", 2)])
def test_a_small_budget_slows_a_federation_but_never_stops_it(staleness: str, most: int | None) -> None:
    """Protects against waiting for ever for a model that nobody can afford to change, and against rounds of
    empty messages."""
    generator = np.random.default_rng(0)
    settings = PofmklSettings.model_validate(
        {
            "federation": {"name": "f", "clients": 2},
            "role": {"kind": "pofmkl-client"},
            "learning": {
                "staleness": staleness,
                "max_staleness": most,
                "features_per_kernel": 5,
                "round_timeout_seconds": 1e6,
            },
            "kernels": {"bandwidths": [0.5, 1.0, 2.0]},
            "uplink": {"budget_bytes_per_second": 20.0},
        }
    )
    outcome = simulate(
        settings, generator.normal(size=(12, 2, 3)), generator.uniform(size=(12, 2)), local_only=False
    )
    assert np.isfinite(outcome.predictions).all()
    assert np.abs(outcome.parameters).max() > 0
    assert outcome.budget_bytes is not None
    assert outcome.uplink_bytes > 0


@pytest.mark.parametrize("step", [-3e38, float("nan"), float("inf")])
@pytest.mark.parametrize("lockstep", [True, False])
def test_a_step_too_long_for_its_numbers_is_refused_alone(lockstep: bool, step: float) -> None:
    """Protects the model and the changelog from an infinity, which could never be restored, and the
    neighbours in the batch."""
    role = server(lockstep)
    (refused,) = role.receive([update("a", 1, 1.0), update("b", 1, step)], 0.0)
    assert isinstance(refused, Rejection)
    assert refused.error.reason == "not_finite"
    assert refused.received.message.client == "b"
    figures = {(figure.name, figure.labels): figure.value for figure in role.measure()}
    assert figures["updates_applied", ()] == (0 if lockstep else 1)
    assert figures["round_waiting", ()] == (1 if lockstep else 0)


def test_an_extreme_client_cannot_make_the_model_infinite() -> None:
    """Protects every other client: the longest step that is accepted moves parameters that are still numbers,
    which it takes."""
    role = server(lockstep=False)
    assert role.receive([update("a", number, -1e18) for number in range(1, 200)], 0.0) == []
    kernels = [change for change in role.changed_state() if change.key == b"kernel/0"]
    parameters = decode_array(
        KERNEL_PARAMETERS.decode(kernels[-1].value).parameters, np.float32, (4,), "parameters"
    )
    np.testing.assert_allclose(parameters, LARGEST_PARAMETERS / 2, rtol=2e-3)


def test_a_round_is_as_long_as_the_times_in_its_topic_say() -> None:
    """Protects updates that lay in the topic while the server was away: they belong to the round, however
    late they are read."""
    role = server(lockstep=True)
    role.receive([update("a", 1, 1.0, at=1000.0)], 1000.0)
    assert role.wake_at == 1030.0
    # Read an hour later, written a second after the first.
    assert role.receive([update("b", 1, 1.0, at=1001.0)], 4600.0) == []
    figures = {figure.name: figure.value for figure in role.measure()}
    assert (figures["updates_applied"], figures["timed_out_rounds"], figures["model_version"]) == (2, 0, 1)


def test_an_update_written_after_the_timeout_is_of_the_next_round() -> None:
    """Protects against a round that a lost client keeps open for as long as the others go on writing."""
    role = server(lockstep=True)
    role.receive([update("a", 1, 1.0, at=1000.0), update("b", 1, 1.0, at=1031.0)], 1031.0)
    figures = {(figure.name, figure.labels): figure.value for figure in role.measure()}
    assert figures["timed_out_rounds", ()] == 1
    assert figures["ignored_updates", (("reason", "late"),)] == 1


def test_a_tick_closes_a_round_that_has_waited() -> None:
    """Protects a federation whose other clients have all fallen silent."""
    role = server(lockstep=True)
    role.receive([update("a", 1, 1.0, at=1000.0)], 1000.0)
    role.receive([], 1029.0)
    assert {figure.name: figure.value for figure in role.measure()}["model_version"] == 0
    role.receive([], 1030.0)
    assert {figure.name: figure.value for figure in role.measure()}["model_version"] == 1


def test_a_round_that_a_clock_ahead_opened_waits_no_longer() -> None:
    """Protects a round from a clock that is set back: it would wait the hour that the clock was ahead for
    whoever fell silent."""
    role = server(lockstep=True)
    role.receive([update("a", 1, 1.0, at=4600.0)], 1000.0)
    role.receive([], 1000.0)
    assert role.wake_at == 1030.0
    restored = server(lockstep=True)
    for change in role.changed_state():
        restored.restore(change)
    restored.receive([], 1030.0)
    assert {figure.name: figure.value for figure in restored.measure()}["model_version"] == 1


def test_a_model_that_diverges_can_be_taken_back() -> None:
    """Protects a server from ending at every start: with a rate far too large its parameters grew until they
    were infinite."""

    def gradient_server() -> PofmklServer:
        role = new_server(
            clients=2, kernels=1, features=2, dimension=2, step=lambda kernels: StochasticGradientStep(1e6)
        )
        role.open(0)
        return role

    role, restored = gradient_server(), gradient_server()
    for sequence in range(1, 100):
        assert role.receive([update("a", sequence, 1.0 if sequence % 2 else -0.7)], 1000.0) == []
    for change in role.changed_state():
        restored.restore(change)
    (row,) = [KERNEL_PARAMETERS.decode(change.value).parameters for change in restored_rows(restored)]
    assert np.abs(decode_array(row, np.float32, (4,), "parameters")).max() > LARGEST_PARAMETERS / 4


def restored_rows(role: PofmklServer) -> list[StateChange]:
    """The kernels that a restored server publishes with its next update."""
    role.receive([update("b", 1, 0.1)], 1000.0)
    return [change for change in role.changed_state() if change.key == kernel_key(0)]


def test_a_round_does_not_wait_for_a_client_that_made_room() -> None:
    """Protects every round after a client was replaced: the one that was forgotten would time each of them
    out."""
    role = server(lockstep=True)
    role.receive([update("a", 1, 1.0, at=1000.0)], 1000.0)
    # From here on a round waits for the clients that were heard since the last timeout, no longer for all.
    role.receive([], 1030.0)
    role.receive(
        [update("b", 1, 1.0, version=1, at=1031.0), update("a", 2, 1.0, version=1, at=1032.0)], 1032.0
    )
    day_after = 1032.0 + 86_400.0
    assert role.receive([update("c", 1, 1.0, version=2, at=day_after)], day_after) == []
    assert role.receive([update("a", 3, 1.0, version=2, at=day_after + 1)], day_after + 1) == []
    figures = {figure.name: figure.value for figure in role.measure()}
    assert (figures["expired_clients"], figures["timed_out_rounds"], figures["model_version"]) == (1, 1, 3)


@pytest.mark.parametrize("lockstep", [True, False])
def test_samples_of_another_dimension_are_refused_even_after_a_restart(lockstep: bool) -> None:
    """Protects the sum: features of 3 inputs and of 2 have nothing to do with one another, whatever the other
    settings."""
    role = server(lockstep)
    role.receive([update("a", 1, 1.0)], 0.0)
    other = server(lockstep)
    for change in role.changed_state():
        other.restore(change)
    for each in (role, other):
        (refused,) = each.receive([update("b", 1, 1.0, dimension=3)], 0.0)
        assert isinstance(refused, Rejection)
        assert refused.error.reason == "configuration"
        assert "3 features" in refused.error.text


def test_a_model_of_another_federation_is_not_taken_with_the_next_version() -> None:
    """Protects a client's parameters: kernels before a marker that was refused must not come in with the
    marker after it."""
    table = ModelTable(kernels=1, row_length=4, dimension=2, shards=1, fingerprint=0, dtype=np.float32)
    for wrong in (
        ShardVersion(VERSION, 1, 2, 0, 5, 5),
        ShardVersion(VERSION, 0, 3, 0, 5, 5),
        ShardVersion(VERSION, 0, 2, 1, 5, 5),
    ):
        table.apply(KernelParameters(VERSION, 0, encode_array(np.ones(4, np.float32))), 0)
        with pytest.raises(BadRecord, match="configuration"):
            table.apply(wrong, 0)
        table.apply(ShardVersion(VERSION, 0, 2, 0, 1, 1), 0)
        assert not table.parameters.any()


def test_a_label_far_out_of_its_range_is_refused() -> None:
    """Protects the shared model: one label of 1e17 would undo what every client has learnt."""
    reader = SampleReader(SamplesSection(topic="t", features=["x"], label="y", label_range=(10, 20)))
    record = Record("t", 0, 0, b"client", b'{"x": 1, "y": 10009}')
    assert reader.decode(record).label == pytest.approx(999.9)
    for label in (b"10011", b"-9991", b"1e17"):
        with pytest.raises(BadRecord, match="label_range"):
            reader.decode(Record("t", 0, 0, b"client", b'{"x": 1, "y": ' + label + b"}"))


def test_a_number_that_comes_again_on_the_next_version_counts_for_its_round() -> None:
    """Protects lockstep under at_least_once: a client killed between its update and its state must not hold a
    round up for ever."""
    role = server(lockstep=True)
    role.receive([update("a", 1, 1.0), update("b", 1, 1.0)], 0.0)
    assert (
        role.receive(
            [update("a", 1, 1.0, version=1), update("a", 1, 1.0, version=1), update("b", 1, 1.0)], 1.0
        )
        == []
    )
    figures = {(figure.name, figure.labels): figure.value for figure in role.measure()}
    assert figures["round_waiting", ()] == 1
    assert figures["ignored_updates", (("reason", "duplicate"),)] == 2
    role.receive([update("b", 2, 1.0, version=1)], 1.0)
    assert next(figure.value for figure in role.measure() if figure.name == "model_version") == 2
