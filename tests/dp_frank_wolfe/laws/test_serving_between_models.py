"""Predictions that are asked for while parties change to another model, each at its own moment: of one model,
and not lost."""

from __future__ import annotations

from itertools import product

import msgspec
import numpy as np
import pytest
from dp_frank_wolfe.federations import COLUMNS, ROWS, SERVER_MEMBER
from dp_frank_wolfe.hand_made import Server
from dp_frank_wolfe.hand_made import settings_of as server_settings
from dp_frank_wolfe.laws.closed_loop import ClosedLoop, federation, names_of
from dp_frank_wolfe.party_driver import Driver
from dp_frank_wolfe.party_driver import settings as party_settings

from streamfl.dp_frank_wolfe.messages import Partial, read_content
from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE

PARTIES = 3


def shown(loop: ClosedLoop, party: int, name: str, row: np.ndarray) -> None:
    """A party's record of an entity comes."""
    own = row[party * COLUMNS : (party + 1) * COLUMNS].tolist()
    content = {f"x{column}": value for column, value in enumerate(own)}
    loop.write(f"party-{party}-samples", name, msgspec.json.encode(content))


def fitted_again(loop: ClosedLoop, window: int) -> None:
    """Another window fills, and parties have its model."""
    loop.write_rows(names_of(ROWS, window * 1000), seed=window)
    loop.settle()
    assert loop.server.model == window
    assert [loop.party(party).model.version for party in loop.parties] == [window] * len(loop.parties)


def of_entity(loop: ClosedLoop, name: str) -> list[dict[str, object]]:
    return [one for one in loop.published("predictions") if one["entity"] == name]


def test_parties_that_are_a_model_apart_predict_with_the_older_one() -> None:
    """Protects users from predictions that never come: whichever parties have a record before they change to
    another model and whichever after it, each entity is predicted once, with all parties' weights of one
    model. Every member is taken up again between the records.
    """
    loop = federation(PARTIES, serving={"mode": "exact"}, window={"fits": 9})
    fitted_again(loop, 1)
    models = {1: np.concatenate(list(loop.models().values()))}
    random = np.random.default_rng(5)
    groups = list(product([False, True], repeat=PARTIES))
    rows = {f"late {late}": random.uniform(-1, 1, PARTIES * COLUMNS) for late in groups}

    def show(late: bool) -> None:
        for group in groups:
            for party in range(PARTIES):
                if group[party] == late:
                    shown(loop, party, f"late {group}", rows[f"late {group}"])
        loop.settle()

    show(False)
    fitted_again(loop, 2)
    models[2] = np.concatenate(list(loop.models().values()))
    assert not np.array_equal(models[1], models[2])
    for name in loop.members:
        loop.restart(name)
    show(True)
    for group in groups:
        model = 2 if all(group) else 1
        (found,) = of_entity(loop, f"late {group}")
        assert found["model"] == model, group
        (own,) = {one["intercept"] for one in loop.published("model") if one["version"] == model}
        assert found["prediction"] == pytest.approx(
            own + float(rows[f"late {group}"] @ models[model]), abs=8 / FEATURE_ONE
        )
    assert loop.members[SERVER_MEMBER].role.counts.expired_predictions == 0
    assert loop.rejections() == []


def test_what_is_two_models_apart_is_given_up_and_counted() -> None:
    """Protects the bound of what waits, and the operator's sight of it: a part that nobody can join any more
    leaves the state."""
    loop = federation(2, serving={"mode": "exact"}, window={"fits": 9})
    fitted_again(loop, 1)
    # The window's own records came before there was a model.
    assert loop.members["party-0"].role.counts.early_records == ROWS
    rows = np.full(2 * COLUMNS, 0.5)
    shown(loop, 0, "left behind", rows)
    loop.settle()
    fitted_again(loop, 2)
    fitted_again(loop, 3)
    shown(loop, 1, "left behind", rows)
    loop.settle()
    fitted_again(loop, 4)
    assert loop.members[SERVER_MEMBER].role.counts.expired_predictions == 1
    fitted_again(loop, 5)
    fitted_again(loop, 6)
    assert of_entity(loop, "left behind") == []
    assert loop.members[SERVER_MEMBER].role.counts.expired_predictions == 2
    assert not any(key.startswith(b"partial/") for _, key in loop.members[SERVER_MEMBER].state)
    assert loop.rejections() == []


def test_a_party_tells_no_model_before_that_others_do_not_have() -> None:
    """Protects the sum: a party that was away for a whole fit has another version before, and tells none."""
    party = Driver(
        party_settings(serving={"mode": "exact"}, window={"fits": 9}, privacy={"epsilon": float("inf")})
    ).begun()
    told = []
    for window in (1, 2, 4):
        if window > 1:
            party.window(window, seed=window)
        party.hear(party.model([0.1 * window, 0, 0, 0], window=window))
        party.hear(party.sample("somebody", [1.0, 0, 0, 0]))
        party.start()
        told += [read_content(one.content, Partial) for one in party.sent[-1:]]
    assert [(one.model, one.value) for one in told] == [
        (1, pytest.approx(0.1)),
        (2, pytest.approx(0.2)),
        (4, pytest.approx(0.4)),
    ]
    assert [one.before for one in told] == [None, pytest.approx(0.1), None]


def test_parts_without_a_model_in_common_are_never_added() -> None:
    """Protects predictions from a sum over two models, for which no model would be responsible."""
    server = Server(server_settings(serving={"mode": "exact"}))
    server.task._run.window = 4

    def tell(
        party: str, entity: str, model: int, value: float, before: float | None, number: int
    ) -> list[str]:
        return server.hear(party, "partial", Partial(entity, model, value, before), iteration=number)

    # Who never had the version before cannot join those who are behind.
    assert tell("party-0", "a", 3, 0.25, 0.125, 1) == []
    assert tell("party-1", "a", 4, 0.25, None, 1) == []
    assert server.published == []
    # The newest that all have; and an entity that comes again is told in the order in which it came.
    assert tell("party-1", "b", 3, 0.25, 0.0625, 2) == []
    assert tell("party-1", "b", 4, 0.25, 0.0625, 3) == []
    assert tell("party-0", "b", 4, 0.25, 0.125, 2) == []
    assert tell("party-0", "b", 4, 0.25, 0.125, 3) == []
    assert [(one[2]["model"], one[2]["prediction"]) for one in server.published] == [(3, 0.375), (4, 0.5)]
    # The first of a party counts.
    assert tell("party-0", "d", 4, 0.25, None, 4) == []
    assert tell("party-0", "d", 4, 0.125, None, 5) == []
    assert tell("party-1", "d", 4, 0.5, None, 4) == []
    assert server.published[-1][2]["prediction"] == 0.75
    before = dict(server.state)
    for reason, entity, model, value, earlier in (
        ("implausible", "c", 1, 0.1, 0.1),
        ("implausible", "c", 5, 0.1, None),
        ("implausible", "c", 0, 0.1, None),
        ("not_finite", "c", 2, 0.1, float("nan")),
        ("not_finite", "c", 2, 0.1, 0.52),
        ("not_finite", "c", 2, float("nan"), None),
        ("not_finite", "c", 2, 0.52, None),
        ("malformed", "", 2, 0.1, None),
    ):
        assert tell("party-0", entity, model, value, earlier, 6) == [reason]
        assert server.state == before
    private = Server(server_settings(serving={"mode": "private"}))
    private.task._run.window = 4
    assert private.hear("party-0", "partial", Partial("a", 3, 0.0, 0.0), iteration=1) == ["implausible"]
