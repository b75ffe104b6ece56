"""Guest, hosts and coordinator as roles come to what the arithmetic alone comes to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from quasi_newton.federations import Secrets, settings_of
from quasi_newton.laws.closed_loop import ClosedLoop

from streamfl.quasi_newton.members.training_progress import TRAINED

ROWS = 350
MOST_TURNS = 2_000


def federation(hosts: int, secrets: Secrets | None = None, **sections: dict[str, Any]) -> ClosedLoop:
    names = ["g", *(f"h{number + 1}" for number in range(hosts)), "c"]
    return ClosedLoop({name: settings_of(name, hosts, secrets, **sections) for name in names})


def trained(
    hosts: int, secrets: Secrets | None = None, rows: int = ROWS, **sections: dict[str, Any]
) -> ClosedLoop:
    loop = federation(hosts, secrets, **sections)
    loop.write_table(rows, 3, hosts, missing=7)
    loop.settle()
    return loop


def assert_equals_direct(loop: ClosedLoop) -> None:
    """Weights, pairs and the model of every party, to the last bit."""
    trace = loop.direct()
    names = [name for name in loop.members if name != "c"]
    for number, name in enumerate(names):
        party = loop.party(name)
        assert party.progress.phase == TRAINED, party.progress.failure
        assert np.array_equal(party.iterates.own.weights, trace.weights[number][-1])
        assert party.iterates.model is not None
        assert np.array_equal(party.iterates.model, trace.model[number])
        kept = [at for at, (_, was_kept) in enumerate(trace.pairs) if was_kept][
            -party.settings.learning.memory :
        ]
        pairs = np.array([[trace.steps[number][at], trace.curvatures[number][at]] for at in kept])
        assert np.array_equal(party.iterates.own.pairs, pairs.reshape(party.iterates.own.pairs.shape))
    assert loop.members["c"].role.task(0).epoch_loss == trace.losses[-1]
    assert loop.rejections() == []


@pytest.mark.parametrize("hosts", [1, 2])
def test_plain_training_is_the_arithmetic(hosts: int) -> None:
    """Messages, alignment, masks and rounds change no bit of what is learnt."""
    loop = trained(hosts)
    assert len(loop.party("g").learnt) == 300
    assert loop.direct().epochs == 4
    assert any(kept for _, kept in loop.direct().pairs)
    assert_equals_direct(loop)


@pytest.fixture(name="secrets", scope="module")
def _secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    return Secrets(tmp_path_factory.mktemp("secrets"))


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("masked", [True, False])
def test_encrypted_training_is_the_arithmetic(secrets: Secrets, hosts: int, masked: bool) -> None:
    """Encryption, packing, blinding and masks change no bit of what is learnt."""
    loop = trained(hosts, secrets, encryption={"mask_gradients": masked}, learning={"epochs": 2})
    assert loop.direct().epochs == 2
    assert any(kept for _, kept in loop.direct().pairs)
    assert_equals_direct(loop)


def outcome(loop: ClosedLoop) -> list[bytes]:
    """What every party has learnt."""
    models = [loop.party(name).iterates.model for name in loop.members if name != "c"]
    return [b"" if model is None else model.tobytes() for model in models]


@pytest.mark.long
@pytest.mark.parametrize(("precision", "period"), [("plain", 1), ("plain", 5), ("plain", 7), ("paillier", 1)])
@pytest.mark.parametrize("killed", ["g", "h1", "c"])
def test_a_member_may_end_at_any_message(secrets: Secrets, killed: str, precision: str, period: int) -> None:
    """A member that is killed before a commit, at each or some messages, and taken up by another process,
    comes to the same.

    What it had sent before it was killed is sent again with the same bytes.
    """
    # Long enough that pairs are kept, used after a restart, and give way to newer ones.
    hosts = 2
    own = secrets if precision == "paillier" else None
    learning = {"epochs": 4, "memory": 1, "curvature_every": 3}
    usual = trained(hosts, own, learning=learning)
    assert sum(kept for _, kept in usual.direct().pairs) > 1
    loop = federation(hosts, own, learning=learning)
    loop.write_table(ROWS, 3, hosts, missing=7)
    for turn in range(MOST_TURNS):
        moved = False
        for name, member in loop.members.items():
            if name == killed and turn % period == 0 and member.unread:
                moved |= loop.step_again(name)
            else:
                moved |= loop.step(name)
        if not moved:
            if loop.party("g").progress.phase == TRAINED:
                break
            loop.now += 5.0
    assert outcome(loop) == outcome(usual)
    assert loop.rejections() == []
    # Of one member to one topic, a redo is the same bytes: uncommitted records among them.
    assert {write for write in loop.writes if write[0] == killed} == {
        write for write in usual.writes if write[0] == killed
    }


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"learning": {"output_bound": 0.01}}, "beyond the bound"),
        ({"learning": {"min_support": 60}, "preprocessing": {"method": "quantile-bins"}}, "columns"),
        (
            {"learning": {"batch": 340, "min_batch": 340}, "alignment": {"entities": 340}},
            "too few for a batch",
        ),
        ({"learning": {"largest_leverage": 0.02}}, "rows are so far out"),
    ],
)
def test_a_training_that_comes_to_nothing_ends_everywhere(sections: dict[str, Any], text: str) -> None:
    """Nobody waits for a member that cannot go on, and the operator of each is told."""
    loop = trained(2, **sections)
    troubles = [member.role.trouble for member in loop.members.values()]
    assert all(trouble is not None and "training 1 has ended" in trouble for trouble in troubles), troubles
    assert any(text in str(trouble) for trouble in troubles)
    assert not any(member.role.waiting for member in loop.members.values())
    assert [member.role.counts.failed_trainings for member in loop.members.values()] == [1, 1, 1, 1]
    for name in loop.members:
        loop.restart(name)
        assert loop.members[name].role.trouble is not None
    assert loop.rejections() == []


def test_ciphertexts_are_as_many_as_the_formulas_say(secrets: Secrets) -> None:
    """Host and guest send 2 |S| an iteration and 2 |S_H| a pair; uploads are ceil(columns / slots), inner
    products too."""
    loop = trained(1, secrets, learning={"epochs": 2})
    trace = loop.direct()
    learning, settings = loop.party("g").settings.learning, loop.party("g").settings
    bits = 512 - 2
    gradient, curvature = (kind.slot_bits for kind in (settings.kinds.gradients, settings.kinds.curvature))
    numbers = {"g": 3 + 1, "h1": 3}
    expected = {"g": 0, "h1": 0}
    kept = 0
    offers = dict(trace.pairs)
    for iteration in range(1, len(trace.visited) + 1):
        for name, columns in numbers.items():
            # The guest's labels are one more column. Both send the products of g with the basis, and one
            # number for the loss.
            expected[name] += learning.batch + -(-(columns + (name == "g")) // (bits // gradient))
            expected[name] += -(-(2 * kept + 2) // (bits // settings.products.slot_bits))
        if iteration in offers:
            for name, columns in numbers.items():
                expected[name] += learning.batch + -(-columns // (bits // curvature))
                expected[name] += -(-(4 * kept + 4) // (bits // settings.products.slot_bits))
            kept = min(kept + offers[iteration], learning.memory)
    assert {name: loop.members[name].role.counts.ciphertexts_sent for name in numbers} == expected
    measured = {one.name: one.value for one in loop.members["h1"].role.measure()}
    assert measured["ciphertexts_sent"] == expected["h1"]


def test_each_party_keeps_its_part_of_the_model() -> None:
    """Protects scoring: what is kept scores the rows of the training as the last epoch's mean iterate does,
    after a restart too."""
    loop = trained(1)
    for name in ("g", "h1"):
        loop.restart(name)
        party = loop.party(name)
        model = party.trained
        assert model is not None
        assert (model.version, model.intercept, len(party.learnt)) == (1, name == "g", 300)
        names = sorted(party.learnt)
        assert party.iterates.model is not None
        assert np.array_equal(model.weights, party.iterates.model)
        assert len(model.outputs(party.table.rows(names)[0])) == 300
