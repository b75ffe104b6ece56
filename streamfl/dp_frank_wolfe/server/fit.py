"""A fit under way at the server: its iterations, the vertices received, and the sketches of shown columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.dp_frank_wolfe.learning.blocks import step_length
from streamfl.dp_frank_wolfe.learning.estimator import Calculation, PartyQuestion
from streamfl.dp_frank_wolfe.learning.iterate import Iterate, Vertex
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.learning.weights import read_remembered, read_weights, weights_of
from streamfl.dp_frank_wolfe.messages import Answers, Ask, VertexAnswer, content_of, read_content
from streamfl.dp_frank_wolfe.metrics import MemberCounts
from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE
from streamfl.dp_frank_wolfe.privacy.budget import FitPlan
from streamfl.dp_frank_wolfe.state import SERVER_FIT, SHOWN, VERTICES, WEIGHTS
from streamfl.encoding.changelog_checks import check_name, check_number
from streamfl.encoding.wire import Count, encode_array
from streamfl.state.changelog import ChangedParts
from streamfl.state.value_fragments import VALUE_FRAGMENT_BYTES, ValueFragments

__all__ = ["Fit"]

Floats = NDArray[np.float64]


class _Progress(msgspec.Struct, array_like=True):
    """Progress of the window's fit.

    window: 0 before the first.
    over: it has ended.
    vertices, columns: how many were released.
    """

    window: Count = 0
    iteration: Count = 0
    over: bool = False
    vertices: Count = 0
    columns: Count = 0


class _Vertices(msgspec.Struct, array_like=True):
    """A party's vertices in the present iteration. chosen: block's number, column, sign > 0."""

    chosen: list[tuple[Count, Count, bool]]
    gap: float | None


@dataclass(frozen=True)
class _Shown:
    """sums: as they came, 64-bit whole numbers."""

    column: int
    sums: NDArray[np.int64]


class Fit:
    """The present fit.

    counts: of the member. All that is counted follows from releases.
    centred: whether a party has released its means.
    """

    def __init__(
        self, public: Public, parts: ChangedParts, counts: MemberCounts, centred: Callable[[str], bool]
    ) -> None:
        self._public = public
        self._counts = counts
        self._centred = centred
        self._numbers = public.settings.sketch_numbers
        self._progress = _Progress()
        self._remember_progress = parts.single(SERVER_FIT, _Progress, self._restore_progress)
        self._kept_vertices = parts.named(VERTICES, self._party, _Vertices, self._restore_vertices)
        self._kept_shown = parts.named(SHOWN, bytes.decode, bytes, self._restore_shown)
        self._vertices: dict[str, _Vertices] = {}
        self._weights = ValueFragments(parts, WEIGHTS, 64 * public.settings.learning.columns + 65_536)
        self._made: Iterate | None = None
        # By party and column: restored pieces of its sums, by number of the piece, until the iterate is made.
        self._shown: dict[tuple[str, int], dict[int, bytes]] = {}
        self._plans: dict[tuple[str, int], FitPlan] = {}

    # ---- results so far

    @property
    def over(self) -> bool:
        return self._progress.over

    @property
    def iteration(self) -> int:
        return self._progress.iteration

    @property
    def weights(self) -> Mapping[str, Floats]:
        return self._iterate.x

    @property
    def support(self) -> int:
        return self._iterate.support

    @property
    def l1_norm(self) -> float:
        return self._iterate.l1_norm

    @property
    def uplink_numbers(self) -> int:
        """One for each signed index, and the numbers of each shown column. Late answers count: they were
        released as well."""
        return self._progress.vertices + self._progress.columns * self._numbers

    # ---- iterations

    def begin(self, window: int) -> None:
        for party, column in self._shown:
            for number in range(self._pieces):
                self._kept_shown.forget(f"{party}/{column}/{number}")
        self._shown = {}
        self._forget_vertices()
        self._weights.clear()
        self._made = None
        self._plans = {}
        self._progress = _Progress(window)
        self._remember_progress(self._progress)

    def questions(self, party: str) -> Iterator[PartyQuestion]:
        if self._due(party, self.iteration):
            columns, weights = weights_of(self.weights[party])
            others = encode_array(self._iterate.others(party, self._numbers))
            yield PartyQuestion("ask", "answers", self.iteration, content_of(Ask(columns, weights, others)))

    def take(self, party: str, kind: str, iteration: int, content: bytes) -> None:
        """Takes an answer. A late one's vertices are of no use, but its columns are kept: the party will not
        show them again."""
        answers: Answers = read_content(content, Answers)
        shown = self._check(party, iteration, answers)
        for one in shown:
            self._iterate.show(party, one.column, self._value(party, one.sums))
            self._shown[party, one.column] = {}
            released = encode_array(one.sums)
            for number in range(self._pieces):
                piece = released[number * VALUE_FRAGMENT_BYTES : (number + 1) * VALUE_FRAGMENT_BYTES]
                self._kept_shown.remember(f"{party}/{one.column}/{number}", piece)
        self._progress.vertices += len(answers.answers)
        self._progress.columns += len(shown)
        self._remember_progress(self._progress)
        self._counts.signed_indices += len(answers.answers)
        self._counts.shown_columns += len(shown)
        self._counts.uplink_numbers += sum(1 + len(one.sums) // 8 for one in answers.answers)
        if iteration < self.iteration:
            self._counts.late_answers += 1
            return
        chosen = [(one.block, one.column, one.positive) for one in answers.answers]
        self._vertices[party] = _Vertices(chosen, answers.gap)
        self._kept_vertices.remember(party, self._vertices[party])

    def settle(self) -> Calculation | None:
        """Takes one step with the blocks that answered."""
        progress, learning = self._progress, self._public.settings.learning
        if self._is_close_enough():
            progress.over = True
        else:
            given = [one for party in self._vertices.values() for one in party.chosen]
            vertices = {block: Vertex(column, 1 if positive else -1) for block, column, positive in given}
            self._iterate.step(vertices, step_length(progress.iteration, self._public.sampling.least))
            if vertices:
                self._remember_weights()
            progress.iteration += 1
            progress.over = progress.iteration >= learning.iterations
            self._counts.iterations += 1
        self._forget_vertices()
        self._remember_progress(progress)
        return None

    # ---- answers

    def _check(self, party: str, iteration: int, answers: Answers) -> list[_Shown]:
        """The columns that are shown for the first time. Raises BadRecord for answers that no party can have
        computed."""
        settings = self._public.settings
        private = math.isfinite(settings.privacy.epsilon)
        if (answers.gap is None) != private or not math.isfinite(answers.gap or 0.0):
            raise BadRecord(
                "implausible", "a gap is only sent when nothing is private, and it has to be a number"
            )
        due = self._due(party, iteration)
        blocks = [one.block for one in answers.answers]
        if blocks != sorted(set(blocks)) or not set(blocks) <= set(due):
            raise BadRecord(
                "implausible",
                f"blocks {blocks[:10]} answer in iteration {iteration}, where {due[:10]} are due",
            )
        shown = [
            _Shown(one.column, self._sums(party, one)) for one in answers.answers if self._is_new(party, one)
        ]
        known = sum(owner == party for owner, _ in self._shown)
        if known + len(shown) > self._public.quota(party):
            raise BadRecord(
                "quota", f"{party!r} has shown {known} columns, and {self._public.quota(party)} are its part"
            )
        return shown

    def _is_new(self, party: str, answer: VertexAnswer) -> bool:
        """Whether this answer shows its column. A column is shown when it is first chosen, and never
        again."""
        if answer.column not in self._public.blocks[answer.block].columns:
            raise BadRecord("implausible", f"column {answer.column} is not of block {answer.block}")
        known = (party, answer.column) in self._shown
        if known == bool(answer.sums):
            reason = "another_sketch" if known else "shape"
            raise BadRecord(reason, f"column {answer.column} is shown once, when it is chosen first")
        return not known

    def _sums(self, party: str, answer: VertexAnswer) -> NDArray[np.int64]:
        if len(answer.sums) != 8 * self._numbers:
            raise BadRecord("shape", f"{len(answer.sums)} bytes are not {self._numbers} sums of a column")
        sums = np.frombuffer(answer.sums, "<i8").astype(np.int64)
        most = self._largest(party)
        if not ((sums >= -most) & (sums <= most)).all():
            raise BadRecord(
                "out_of_bounds", f"a sum of a column is beyond {most}, more than noise can explain"
            )
        return sums

    def _largest(self, party: str) -> int:
        """Largest size of a released sum, in the noise's units."""
        noise, most = self._plan(party).noise, self._public.settings.window.rows * FEATURE_ONE
        return most if noise is None else most // noise.unit + 1 + noise.largest

    def _value(self, party: str, sums: NDArray[np.int64]) -> Floats:
        """Released sums in features of ``FEATURE_ONE``, as :meth:`PartyFit.value` computes them."""
        noise = self._plan(party).noise
        return sums.astype(np.float64) * (noise.unit if noise else 1)

    def _plan(self, party: str) -> FitPlan:
        place = party, self._progress.window
        if place not in self._plans:
            self._plans[place] = self._public.fit_plan(*place, self._centred(party))
        return self._plans[place]

    def _due(self, party: str, iteration: int) -> list[int]:
        blocks = self._public.blocks
        return [
            one
            for one in self._public.sampling.blocks_of(self._progress.window, iteration)
            if blocks[one].party == party
        ]

    def _is_close_enough(self) -> bool:
        """Whether all parties have sent their parts of the duality gap, and it is at most the tolerance."""
        parts = [self._vertices[party].gap for party in self._public.parties if party in self._vertices]
        told = [gap for gap in parts if gap is not None]
        return (
            len(told) == len(self._public.parties) and sum(told) <= self._public.settings.learning.tolerance
        )

    # ---- what is remembered

    @property
    def _iterate(self) -> Iterate:
        """Made of the restored state when it is first needed."""
        if self._made is None:
            columns = self._public.settings.federation.columns
            made = Iterate(self._public.blocks, columns)
            for party, (numbers, weights) in self._remembered_weights().items():
                made.x[party] = read_weights(numbers, weights, columns[party], self._public.radius(party))
            for (party, column), pieces in self._shown.items():
                content = b"".join(pieces[number] for number in sorted(pieces))
                if len(content) != 8 * self._numbers:
                    raise BadRecord("malformed", f"state: {len(content)} bytes are not the sums of a column")
                made.show(party, column, self._value(party, np.frombuffer(content, "<i8").astype(np.int64)))
                self._shown[party, column] = {}
            self._made = made
        return self._made

    def _remembered_weights(self) -> dict[str, tuple[bytes, bytes]]:
        content = self._weights.content
        found = read_remembered(content)
        for party in found:
            self._party(party.encode())
        return found

    def _remember_weights(self) -> None:
        self._weights.write(
            msgspec.msgpack.encode({party: weights_of(own) for party, own in self.weights.items()})
        )

    def _forget_vertices(self) -> None:
        for party in self._vertices:
            self._kept_vertices.forget(party)
        self._vertices = {}

    def _restore_progress(self, progress: _Progress) -> None:
        self._progress = progress

    def _restore_vertices(self, party: str, vertices: _Vertices) -> None:
        self._vertices[party] = vertices

    def _restore_shown(self, name: str, value: bytes) -> None:
        owner, *numbers = name.encode().split(b"/")
        party = self._party(owner)
        column, number = map(check_number, numbers)
        if number >= self._pieces or column >= self._public.settings.federation.columns[party]:
            raise BadRecord("malformed", f"state {name[:60]!r} is of a column that {party} does not have")
        self._shown.setdefault((party, column), {})[number] = value

    def _party(self, name: bytes) -> str:
        party = check_name(name)
        if party not in self._public.parties:
            raise BadRecord("malformed", f"state of {party[:60]!r}, which is not a party")
        return party

    @property
    def _pieces(self) -> int:
        return -(-8 * self._numbers // VALUE_FRAGMENT_BYTES)
