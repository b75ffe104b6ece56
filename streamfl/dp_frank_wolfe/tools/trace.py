"""Everything that a fit was drawn from: enough to compute it again without this code.

In production, noise has a secret. So a trace can only be made with privacy.insecure_test_noise. It follows
from that noise's secret: the parties' parts are computed once more, on the same rows and messages, and the
results must equal what was sent."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.dp_frank_wolfe.learning.blocks import step_length
from streamfl.dp_frank_wolfe.learning.means import means_bits, released_means
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.learning.selection import SelectionPlan, clip_rows, row_bits
from streamfl.dp_frank_wolfe.learning.sketch import SignSketch
from streamfl.dp_frank_wolfe.messages import Answers
from streamfl.dp_frank_wolfe.party.fit import PartyFit, ReleaseContext
from streamfl.dp_frank_wolfe.party.selection import PartySelection
from streamfl.dp_frank_wolfe.party.window import Window
from streamfl.dp_frank_wolfe.tools.received_fits import ReceivedFit, weights_of
from streamfl.privacy.integer_distribution import DRAW_BYTES
from streamfl.privacy.integer_noise import IntegerNoise

__all__ = ["traced"]

Arrays = dict[str, NDArray[Any]]
Floats = NDArray[np.float64]


class _NotedFit(PartyFit):
    """draws: bits of each choice by iteration and block, and of each column's sketch. tried: columns by
    iteration and block."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.choices: dict[tuple[int, int], bytes] = {}
        self.sketches: dict[int, bytes] = {}
        self.tried: dict[tuple[int, int], NDArray[np.int64]] = {}

    def _open_columns(self, iteration: int, number: int) -> NDArray[np.int64]:
        self.tried[iteration, number] = super()._open_columns(iteration, number)
        return self.tried[iteration, number]

    def _bits(
        self,
        iteration: int,
        kind: str,
        digest: bytes,
        draws: int,
        given: tuple[str | int | bytes | Fraction, ...],
    ) -> bytes:
        bits = super()._bits(iteration, kind, digest, draws, given)
        of, number = kind.split()
        if of == "choice":
            self.choices[iteration, int(number)] = bits
        else:
            self.sketches[int(number)] = bits
        return bits


class _NotedSelection(PartySelection):
    """draws: bits of each release by kind, those of the choices one after the other."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.draws: dict[str, bytes] = {}

    def _bits(self, kind: str, draws: int, given: tuple[Fraction | int, ...]) -> bytes:
        bits = super()._bits(kind, draws, given)
        of = kind.split()[0]
        self.draws[of] = self.draws.get(of, b"") + bits
        return bits


def traced(
    public: Public,
    places: Mapping[str, ReleaseContext],
    number: int,
    fit: ReceivedFit,
    raw: Mapping[str, Window],
    windows: Mapping[str, Window],
    course: list[dict[str, Floats]],
) -> Arrays:
    """All arrays of a window, by name; W is its number.

    For all: W/rows: of the table, in the order of the manifest. W/columns/PARTY: the frozen whole numbers,
    (rows, columns), and W/labels/PARTY, (rows,), as they were fitted. W/x/PARTY: weights before each step and
    after the last, (iterations + 1, columns). prediction_bound: R. For parties that centre: W/means/PARTY,
    the released sums of columns and label, (columns + 1,), the label's times floor(columns^.5), and
    W/means_draws/PARTY. noise/means/PARTY: unit, and variance in units^2.
    raw: windows before they were centred.

    Frank-Wolfe. blocks/party, blocks/radius: (blocks,). blocks/PARTY: the block of each column. W/steps:
    gamma, (iterations,). least: p. W/due: which blocks took part, (iterations, blocks).
    W/chosen: column and sign, (iterations, blocks, 2), a sign of 0 where a block did not answer.
    W/choice_draws: 16 bytes each, (iterations, blocks, 16). W/tried/PARTY: columns that could be chosen,
    (iterations, columns). rate/PARTY: of the choices, a fraction, empty for the best.
    W/signs: (rows, m), if columns are sketched by signs. W/shown/PARTY, W/shown_at/PARTY: columns whose
    sketches were released, and in which iteration. W/sums/PARTY: (shown, m), in units of the noise.
    W/sum_draws/PARTY: (shown, m, 16).
    noise/PARTY: unit, and variance in units^2, a fraction; empty without noise.

    Where columns are chosen once. W/selected/PARTY, W/choice_draws/PARTY: best first. W/values/PARTY,
    W/norms/PARTY, W/told/PARTY (rows), W/products/PARTY, W/gram/PARTY: as they were released.
    W/KIND_draws/PARTY: what their noise was drawn from. noise/KIND/PARTY: as above. row_bound/PARTY,
    row_bits/PARTY: B, and the bits after the point of others' rows
    that were cut to it.
    """
    given: Arrays = {"rows": np.array([int(name) for name in fit.manifest])}
    for party, own in windows.items():
        given[f"columns/{party}"], given[f"labels/{party}"] = own.columns, own.labels
        given[f"x/{party}"] = np.array([x[party] for x in course])
    of_fit = _of_fit if fit.asks else _of_selection
    own_arrays, shared = of_fit(public, places, number, fit, windows)
    for party, told in fit.means.items():
        plan = public.means_plan(party)
        assert np.array_equal(released_means(raw[party], plan, places[party]), told), "other means"
        given[f"means/{party}"] = told
        given[f"means_draws/{party}"] = _bytes(
            b"" if plan.noise is None else means_bits(raw[party], plan, places[party])
        )
        shared[f"noise/means/{party}"] = _strength(plan.noise)
    shared["prediction_bound"] = np.array(public.settings.bounds.prediction)
    return {**{f"{number}/{name}": array for name, array in {**given, **own_arrays}.items()}, **shared}


def _of_fit(
    public: Public,
    places: Mapping[str, ReleaseContext],
    number: int,
    fit: ReceivedFit,
    windows: Mapping[str, Window],
) -> tuple[Arrays, Arrays]:
    rounds = max(iteration for iteration, _ in fit.asks) + 1
    chosen = np.zeros((rounds, len(public.blocks), 2), np.int64)
    draws = np.zeros((rounds, len(public.blocks), DRAW_BYTES), np.uint8)
    due = np.zeros((rounds, len(public.blocks)), np.bool_)
    for iteration in range(rounds):
        due[iteration, public.sampling.blocks_of(number, iteration)] = True
    own: Arrays = {"chosen": chosen, "choice_draws": draws, "due": due}
    own["steps"] = np.array([step_length(iteration, public.sampling.least) for iteration in range(rounds)])
    sketch = public.sketch(number)
    if isinstance(sketch, SignSketch):
        own["signs"] = sketch.signs
    shared: Arrays = {
        "blocks/party": np.array([block.party for block in public.blocks]),
        "least": np.array(public.sampling.least),
        "blocks/radius": np.array([block.radius for block in public.blocks]),
    }
    for party, window in windows.items():
        blocks = {at: block for at, block in enumerate(public.blocks) if block.party == party}
        plan, learning = public.fit_plan(party, number), public.settings.learning
        again = _NotedFit(
            window, blocks, plan, sketch, places[party], learning.candidates, public.sampling.seed
        )
        count = window.columns.shape[1]
        tried, shown, shown_at, sums = np.zeros((rounds, count), np.bool_), [], [], []
        for iteration in range(rounds):
            if (iteration, party) not in fit.asks:
                continue
            ask, told = fit.asks[iteration, party], fit.answers[iteration, party]
            numbers = [at for at in blocks if due[iteration, at]]
            found = again.answer(iteration, numbers, weights_of(ask, count), np.frombuffer(ask.others, "<f8"))
            _check(found, told)
            for at, answer in found.items():
                chosen[iteration, at] = answer.vertex.column, answer.vertex.sign
                draws[iteration, at] = _bytes(again.choices.get((iteration, at), bytes(DRAW_BYTES)))[0]
                tried[iteration, again.tried[iteration, at]] = True
                if answer.sums is not None:
                    shown.append(answer.vertex.column)
                    shown_at.append(iteration)
                    sums.append(answer.sums)
        own |= {
            f"tried/{party}": tried,
            f"shown/{party}": np.array(shown),
            f"shown_at/{party}": np.array(shown_at),
        }
        own[f"sums/{party}"] = np.array(sums)
        noise = [_bytes(again.sketches[column]) for column in shown if column in again.sketches]
        own[f"sum_draws/{party}"] = np.array(noise, np.uint8)
        shared[f"blocks/{party}"] = _block_of_each(blocks, count)
        shared[f"rate/{party}"] = np.array("" if plan.rate is None else str(plan.rate))
        shared[f"noise/{party}"] = _strength(plan.noise)
    return own, shared


def _of_selection(
    public: Public,
    places: Mapping[str, ReleaseContext],
    number: int,
    fit: ReceivedFit,
    windows: Mapping[str, Window],
) -> tuple[Arrays, Arrays]:
    own: Arrays = {}
    shared: Arrays = {}
    for party, window in windows.items():
        plan, told = public.selection_plan(party), fit.chosen[party]
        again = _NotedSelection(window, plan, places[party])
        again.choose()
        found = {"selected": np.array(again.chosen), "values": again.values()}
        assert found["selected"].astype("<u4").tobytes() == told.columns, "another choice"
        if public.settings.learning.estimator == "marginal":
            found["norms"] = again.norms()
            assert found["norms"].astype("<f8").tobytes() == told.norms, "other norms"
        else:
            found |= _of_rows(again, plan, fit, party)
            shared |= {
                f"row_bound/{party}": np.array(plan.row_bound),
                f"row_bits/{party}": np.array(row_bits(plan.row_bound)),
            }
        assert found["values"].astype("<f8").tobytes() == told.values, "other values"
        own |= {f"{kind}/{party}": array for kind, array in found.items()}
        own |= {f"{kind}_draws/{party}": _bytes(bits) for kind, bits in again.draws.items()}
        shared[f"rate/{party}"] = np.array("" if plan.rate is None else str(plan.rate))
        shared |= {f"noise/{kind}/{party}": _strength(noise) for kind, noise in plan.noises.items()}
    return own, shared


def _of_rows(again: _NotedSelection, plan: SelectionPlan, fit: ReceivedFit, party: str) -> Arrays:
    """Arrays of a party's second round."""
    rows = again.rows()
    assert rows.astype("<f8").tobytes() == fit.chosen[party].rows, "other rows"
    content = fit.others[party].rows if party in fit.others else b""
    others = np.frombuffer(content, "<f8").reshape(len(rows), len(content) // (8 * len(rows)))
    gram, products = again.gram(), again.products(clip_rows(others, plan.row_bound))
    told = fit.products[party]
    assert (products.astype("<f8").tobytes(), gram.astype("<f8").tobytes()) == (told.products, told.gram), (
        "other products"
    )
    return {"told": rows, "products": products, "gram": gram}


def _check(found: Mapping[int, Any], told: Answers) -> None:
    sent = {one.block: (one.column, 1 if one.positive else -1, one.sums) for one in told.answers}
    again = {
        at: (
            one.vertex.column,
            one.vertex.sign,
            b"" if one.sums is None else one.sums.astype("<i8").tobytes(),
        )
        for at, one in found.items()
    }
    assert sent == again, "another answer"


def _block_of_each(blocks: Mapping[int, Any], columns: int) -> NDArray[np.int64]:
    found = np.zeros(columns, np.int64)
    for at, block in blocks.items():
        found[list(block.columns)] = at
    return found


def _strength(noise: IntegerNoise | None) -> NDArray[np.str_]:
    return np.array([] if noise is None else [str(noise.unit), str(noise.variance)], np.str_)


def _bytes(bits: bytes) -> NDArray[np.uint8]:
    """(draws, 16)."""
    return np.frombuffer(bits, np.uint8).reshape(-1, DRAW_BYTES)
