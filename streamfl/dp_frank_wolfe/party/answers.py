"""Computes a party's answers from its frozen window. Works on a copy: state changes only once the release is
in the ledger."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.dp_frank_wolfe.learning.blocks import Block
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.learning.selection import clip_rows
from streamfl.dp_frank_wolfe.learning.sketch import Sketch
from streamfl.dp_frank_wolfe.learning.weights import read_weights
from streamfl.dp_frank_wolfe.messages import (
    Answers,
    Ask,
    Chosen,
    Message,
    OtherRows,
    Products,
    VertexAnswer,
    content_of,
    read_content,
)
from streamfl.dp_frank_wolfe.party.fit import BlockAnswer, FitState, PartyFit
from streamfl.dp_frank_wolfe.party.frozen_window import FrozenWindow
from streamfl.dp_frank_wolfe.party.given import PartyGiven
from streamfl.dp_frank_wolfe.party.selection import PartySelection, SelectionState
from streamfl.dp_frank_wolfe.state import CENTRED, PARTY_FIT, PARTY_SELECTION, WINDOW_NUMBER
from streamfl.encoding.wire import Count, decode_array
from streamfl.state.changelog import ChangedParts

__all__ = ["PartyAnswers", "PreparedAnswer"]

Floats = NDArray[np.float64]
# Largest number in other parties' rows: sums of its square do not overflow.
LARGEST_ROW = 1e100


@dataclass(frozen=True)
class PreparedAnswer:
    """kind, content: of the message. keep: call it once the message may be sent. shown, numbers: for the
    operator's counts."""

    kind: str
    content: bytes
    keep: Callable[[], None]
    shown: int
    numbers: int


class PartyAnswers:
    """Answers what the server asks about the frozen window."""

    def __init__(self, public: Public, given: PartyGiven, parts: ChangedParts, frozen: FrozenWindow) -> None:
        self._public = public
        self._given = given
        self._settings = public.settings
        self._own = public.settings.required_party()
        self._columns = public.settings.own_columns
        self._parts = parts
        self._remember_window = parts.single(WINDOW_NUMBER, int, self._restore_window)
        self._remember_centred = parts.single(CENTRED, bool, self._restore_centred)
        self._remember_fit = parts.single(PARTY_FIT, FitState, self._restore_state)
        self._remember_selection = parts.single(PARTY_SELECTION, SelectionState, self._restore_state)
        self._frozen = frozen
        self._window = 0
        self._centred = False
        self._state: FitState | SelectionState | None = None
        self._fit: PartyFit | None = None
        self._sketch: Sketch | None = None

    @cached_property
    def kinds(self) -> Collection[str]:
        """Kinds of asks that the server may send, in their order."""
        estimator = self._settings.learning.estimator
        return {"frank-wolfe": ("ask",), "marginal": ("choose",), "two-round": ("choose", "rows")}[estimator]

    def place(self, message: Message) -> int:
        """The ask's place in the window, counted from 0. Raises BadRecord if the fit has no such
        iteration."""
        if message.kind != "ask":
            return list(self.kinds).index(message.kind)
        learning = self._settings.learning
        if message.iteration >= learning.iterations:
            raise BadRecord(
                "implausible", f"iteration {message.iteration} of {learning.iterations}, counted from 0"
            )
        return message.iteration

    def begin(self, window: int, centred: bool) -> None:
        """Begins with a frozen window. centred: whether it was centred by means that were released."""
        self.end()
        self._window, self._centred = window, centred
        self._remember_window(window)
        self._remember_centred(centred)

    def end(self) -> None:
        """Forgets the fit."""
        for row in (PARTY_FIT, PARTY_SELECTION, WINDOW_NUMBER, CENTRED):
            self._parts.forget(row.prefix)
        self._window, self._centred, self._state, self._fit, self._sketch = 0, False, None, None, None

    def _restore_window(self, window: int) -> None:
        self._window = msgspec.convert(window, Count)

    def _restore_centred(self, centred: bool) -> None:
        self._centred = centred

    def _restore_state(self, state: FitState | SelectionState) -> None:
        columns = state.shown if isinstance(state, FitState) else state.chosen
        if any(column >= self._columns for column in columns):
            raise BadRecord("malformed", f"a fit in state with columns beyond {self._columns}")
        self._state = state

    def answer(self, message: Message) -> PreparedAnswer:
        """The answer to an ask of the window, after all asks before it. Raises BadRecord if the ask is
        implausible."""
        try:
            if message.kind == "ask":
                return self._answer_ask(message)
            return self._choose(message) if message.kind == "choose" else self._multiply(message)
        except ValueError as error:
            raise BadRecord("implausible", f"{message.kind} of window {message.window}: {error}") from None

    def weights(self, columns: bytes, weights: bytes, radius: float) -> Floats:
        """The own columns' weights in a message, (columns,). Raises BadRecord if they are invalid or beyond
        the radius."""
        with np.errstate(over="ignore"):
            return read_weights(columns, weights, self._columns, radius)

    # ---- Frank-Wolfe

    def _answer_ask(self, message: Message) -> PreparedAnswer:
        public, own = self._public, self._own
        ask: Ask = read_content(message.content, Ask)
        due = [
            number
            for number in public.sampling.blocks_of(message.window, message.iteration)
            if number in self._blocks
        ]
        if not due:
            raise BadRecord("implausible", f"no block of {own!r} takes part in iteration {message.iteration}")
        fit, sketch = self._party_fit()
        weights = self.weights(ask.columns, ask.weights, public.radius(own))
        others = decode_array(ask.others, np.float64, (sketch.numbers,), "others")
        if not set(np.flatnonzero(weights).tolist()) <= set(fit.shown):
            raise BadRecord("implausible", "a column has a weight that was never chosen")
        before = fit.state
        try:
            found = fit.answer(message.iteration, due, weights, others)
            # Without noise the gap is as public as everything else.
            gap = None if np.isfinite(self._settings.privacy.epsilon) else fit.gap(weights, others)
            after = fit.state
        finally:
            fit.state = before

        def keep() -> None:
            fit.state = after
            self._state = after
            self._remember_fit(after)

        content = content_of(
            Answers([_vertex(number, answer) for number, answer in sorted(found.items())], gap)
        )
        shown = [answer.sums for answer in found.values() if answer.sums is not None]
        return PreparedAnswer("answers", content, keep, len(shown), len(found) + sum(map(len, shown)))

    @cached_property
    def _blocks(self) -> Mapping[int, Block]:
        return {number: block for number, block in enumerate(self._public.blocks) if block.party == self._own}

    def _party_fit(self) -> tuple[PartyFit, Sketch]:
        settings, public = self._settings, self._public
        if self._fit is None or self._sketch is None:
            self._sketch = public.sketch(self._window)
            plan = public.fit_plan(self._own, self._window, self._centred)
            place = self._given.place(settings, self._window)
            candidates, seed = settings.learning.candidates, settings.federation.seed
            self._fit = PartyFit(
                self._frozen.window, self._blocks, plan, self._sketch, place, candidates, seed
            )
            if isinstance(self._state, FitState):
                self._fit.state = self._state
        return self._fit, self._sketch

    # ---- estimators that choose once

    def _choose(self, message: Message) -> PreparedAnswer:
        if message.content:
            raise BadRecord("malformed", "a message that asks for a choice says nothing else")
        selection = self._selection()
        marginal = self._settings.learning.estimator == "marginal"
        columns = np.array(selection.choose(), "<u4")
        values = selection.values()
        norms, rows = (selection.norms(), np.zeros(0)) if marginal else (np.zeros(0), selection.rows())
        content = content_of(Chosen(columns.tobytes(), _bytes(values), _bytes(norms), _bytes(rows)))
        numbers = len(columns) + values.size + norms.size + rows.size
        return PreparedAnswer("chosen", content, self._keeping(selection), len(columns), numbers)

    def _multiply(self, message: Message) -> PreparedAnswer:
        if not isinstance(self._state, SelectionState):
            raise BadRecord("implausible", "the others' rows came before this party has chosen")
        told: OtherRows = read_content(message.content, OtherRows)
        plan, rows = self._public.selection_plan(self._own, self._centred), self._settings.window.rows
        count = len(told.rows) // (8 * rows)
        if len(told.rows) % (8 * rows) or count > plan.others:
            raise BadRecord(
                "shape",
                f"{len(told.rows)} bytes of rows: {rows} rows of at most {plan.others} columns are expected",
            )
        others = decode_array(told.rows, np.float64, (rows, count), "rows")
        if np.any(np.abs(others) > LARGEST_ROW):
            raise BadRecord("implausible", f"rows with numbers beyond {LARGEST_ROW:g}")
        selection = self._selection()
        gram = selection.gram()
        products = selection.products(clip_rows(others, plan.row_bound))
        content = content_of(Products(_bytes(products), _bytes(gram)))
        released = products.size + len(gram) * (len(gram) + 1) // 2
        return PreparedAnswer("products", content, self._keeping(selection), 0, released)

    def _selection(self) -> PartySelection:
        """A new object on each call: its state is kept only once the release is in the ledger."""
        plan = self._public.selection_plan(self._own, self._centred)
        place = self._given.place(self._settings, self._window)
        selection = PartySelection(self._frozen.window, plan, place)
        if isinstance(self._state, SelectionState):
            selection.state = self._state
        return selection

    def _keeping(self, selection: PartySelection) -> Callable[[], None]:
        def keep() -> None:
            self._state = selection.state
            self._remember_selection(selection.state)

        return keep


def _vertex(number: int, answer: BlockAnswer) -> VertexAnswer:
    sums = b"" if answer.sums is None else answer.sums.astype("<i8").tobytes()
    return VertexAnswer(number, answer.vertex.column, answer.vertex.sign > 0, sums)


def _bytes(numbers: Floats) -> bytes:
    return numbers.astype("<f8").tobytes()
