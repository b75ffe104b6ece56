"""The server's part of the estimators that choose columns once: the parties' releases, and least squares from
them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.dp_frank_wolfe.learning.estimator import Calculation, PartyQuestion
from streamfl.dp_frank_wolfe.learning.gram import LEAST_EIGENVALUE, doubt, gram_of
from streamfl.dp_frank_wolfe.learning.iterate import SLACK
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.learning.refit import Refit, refitted
from streamfl.dp_frank_wolfe.learning.weights import read_columns, read_remembered, read_weights, weights_of
from streamfl.dp_frank_wolfe.messages import Chosen, OtherRows, Products, content_of, read_content
from streamfl.dp_frank_wolfe.metrics import MemberCounts
from streamfl.dp_frank_wolfe.state import CHOSEN, PRODUCTS, SERVER_SELECTION, WEIGHTS
from streamfl.encoding.wire import Count, decode_array, encode_array
from streamfl.state.changelog import ChangedParts
from streamfl.state.value_fragments import ValueFragments

__all__ = ["Selection"]

Floats = NDArray[np.float64]
# Steps: choices are asked for; products are asked for; there are weights.
CHOOSING, MULTIPLYING, OVER = range(3)


class _Progress(msgspec.Struct, array_like=True):
    """Progress of the window's selection. numbers: how many were released, with signed indices."""

    window: Count = 0
    step: int = CHOOSING
    numbers: Count = 0


class Selection:
    """The present selection.

    counts: of the member.
    centred: whether a party has released its means.
    """

    def __init__(
        self, public: Public, parts: ChangedParts, counts: MemberCounts, centred: Callable[[str], bool]
    ) -> None:
        settings = public.settings
        self._public = public
        self._counts = counts
        self._centred = centred
        self._rows = settings.window.rows
        self._is_two_round = settings.learning.estimator == "two-round"
        self._progress = _Progress()
        self._remember_progress = parts.single(SERVER_SELECTION, _Progress, self._restore_progress)
        most = settings.message_bytes
        self._chosen = {party: ValueFragments(parts, CHOSEN, most, party) for party in public.parties}
        self._products = {party: ValueFragments(parts, PRODUCTS, most, party) for party in public.parties}
        self._weights = ValueFragments(parts, WEIGHTS, 64 * settings.learning.columns + 65_536)

    # ---- results so far

    @property
    def over(self) -> bool:
        return self._progress.step == OVER

    @property
    def iteration(self) -> int:
        return self._progress.step

    @property
    def weights(self) -> Mapping[str, Floats]:
        content, columns = self._weights.content, self._public.settings.federation.columns
        found = read_remembered(content)
        radius = self._public.settings.learning.radius
        return {
            party: read_weights(*found.get(party, (b"", b"")), count, radius)
            for party, count in columns.items()
        }

    @property
    def support(self) -> int:
        return sum(int(np.count_nonzero(own)) for own in self.weights.values())

    @property
    def l1_norm(self) -> float:
        return math.fsum(abs(weight) for own in self.weights.values() for weight in own.tolist())

    @property
    def uplink_numbers(self) -> int:
        """Signed indices and numbers that were released."""
        return self._progress.numbers

    # ---- two rounds at most

    def begin(self, window: int) -> None:
        for fragments in (*self._chosen.values(), *self._products.values(), self._weights):
            fragments.clear()
        self._progress = _Progress(window)
        self._remember_progress(self._progress)

    def questions(self, party: str) -> Iterator[PartyQuestion]:
        if self._progress.step == CHOOSING and not self._chosen[party]:
            yield PartyQuestion("choose", "chosen", 0, b"")
        elif self._progress.step == MULTIPLYING and self._chosen[party]:
            told = [self._told(other) for other in self._choosers if other != party]
            rows = np.hstack([np.zeros((self._rows, 0)), *told])
            yield PartyQuestion("rows", "products", 0, content_of(OtherRows(encode_array(rows))))

    def take(self, party: str, kind: str, iteration: int, content: bytes) -> None:
        if kind == "chosen":
            chosen: Chosen = read_content(content, Chosen)
            numbers = self._check_chosen(party, chosen)
            if self._progress.step == CHOOSING:
                self._chosen[party].write(content)
        else:
            products: Products = read_content(content, Products)
            numbers = self._check_products(party, products)
            if self._progress.step == MULTIPLYING:
                self._products[party].write(content)
        self._progress.numbers += numbers
        self._counts.uplink_numbers += numbers
        self._remember_progress(self._progress)

    def settle(self) -> Calculation | None:
        """Choices first, then products for `two-round`, then least squares over the parties that took part to
        the end."""
        choosers = self._choosers
        if not choosers:
            return None
        if self._progress.step == CHOOSING and self._is_two_round:
            self._progress.step = MULTIPLYING
            self._remember_progress(self._progress)
            return None
        takers = [party for party in choosers if self._products[party]] if self._is_two_round else choosers
        if not takers:
            self._end([], np.zeros(0))
            return None
        given = {party: self._chosen_of(party) for party in takers}
        values = np.concatenate([_floats(one.values) for one in given.values()])
        if self._is_two_round:
            gram = self._gram(takers)
            plans = {party: self._public.selection_plan(party) for party in self._public.parties}
            least = LEAST_EIGENVALUE + doubt(plans, self._rows)
        else:
            gram = np.diag(np.concatenate([_floats(one.norms) for one in given.values()]))
            least = LEAST_EIGENVALUE
        request = Refit(
            encode_array(gram), encode_array(values), self._public.settings.learning.radius, least
        )
        return Calculation(
            refitted, msgspec.msgpack.encode(request), lambda found: self._end(takers, _floats(found))
        )

    def _restore_progress(self, progress: _Progress) -> None:
        self._progress = progress

    def _end(self, takers: list[str], found: Floats) -> None:
        """Stores the weights. found: of the chosen columns of ``takers``, one party's after another's."""
        weights, at = {}, 0
        # The solution depends on what parties released. State with weights beyond the ball could not be
        # restored.
        radius = self._public.settings.learning.radius
        if (total := float(np.sum(np.abs(found)))) > radius * (1 + SLACK):
            found = found * (radius / total)
        for party in takers:
            own = np.zeros(self._public.settings.federation.columns[party])
            columns = self._columns(party)
            own[columns] = found[at : at + len(columns)]
            at += len(columns)
            weights[party] = weights_of(own)
        self._weights.write(msgspec.msgpack.encode(weights))
        self._progress.step = OVER
        self._counts.iterations += 1
        self._remember_progress(self._progress)

    # ---- answers

    def _check_chosen(self, party: str, chosen: Chosen) -> int:
        """How many numbers were released. Raises BadRecord for a choice that no party can have made."""
        count = self._public.quota(party)
        columns = read_columns(chosen.columns, self._public.settings.federation.columns[party])
        if len(columns) != count:
            raise BadRecord("quota", f"{party!r} has chosen {len(columns)} columns, {count} are its part")
        norms, rows = (0, count * self._rows) if self._is_two_round else (count, 0)
        for given, size, what in (
            (chosen.values, count, "values"),
            (chosen.norms, norms, "norms"),
            (chosen.rows, rows, "rows"),
        ):
            self._check_numbers(party, given, size, what)
        return 2 * count + norms + rows

    def _check_products(self, party: str, products: Products) -> int:
        own = len(self._columns(party))
        others = sum(len(self._columns(other)) for other in self._choosers if other != party)
        self._check_numbers(party, products.products, own * others, "products")
        gram = self._check_numbers(party, products.gram, own * own, "gram").reshape(own, own)
        if not np.array_equal(gram, gram.T):
            raise BadRecord("implausible", "products of columns among themselves are symmetric")
        return own * others + own * (own + 1) // 2

    def _check_numbers(self, party: str, content: bytes, count: int, kind: str) -> Floats:
        """The numbers, (count,). Raises BadRecord for numbers that the public plan does not allow the party
        to release."""
        numbers = decode_array(content, np.float64, (count,), kind)
        if not count:
            return numbers
        lowest, highest = self._public.selection_plan(party, self._centred(party)).range_of(kind, self._rows)
        if not ((numbers >= lowest) & (numbers <= highest)).all():
            text = (
                f"{kind} from {numbers.min():g} to {numbers.max():g}, where no noise takes them beyond "
                f"{lowest:g} to {highest:g}"
            )
            raise BadRecord("out_of_bounds", text)
        return numbers

    @property
    def _choosers(self) -> list[str]:
        return [party for party, fragments in self._chosen.items() if fragments]

    def _chosen_of(self, party: str) -> Chosen:
        chosen: Chosen = read_content(self._chosen[party].content, Chosen)
        return chosen

    def _columns(self, party: str) -> NDArray[np.int64]:
        return read_columns(self._chosen_of(party).columns, self._public.settings.federation.columns[party])

    def _told(self, party: str) -> Floats:
        """The party's rows: (rows, columns)."""
        return _matrix(self._chosen_of(party).rows, self._rows, len(self._columns(party)))

    def _gram(self, takers: list[str]) -> Floats:
        """Gram matrix of the parties that released their products. Columns of other parties are left out."""
        own, products = {}, {}
        for party in takers:
            given: Products = read_content(self._products[party].content, Products)
            count = len(self._columns(party))
            own[party] = _matrix(given.gram, count, count)
            others = [other for other in self._choosers if other != party]
            kept = [np.full(len(self._columns(other)), other in takers) for other in others]
            mask = np.concatenate([np.zeros(0, dtype=bool), *kept])
            products[party] = _matrix(given.products, count, len(mask))[:, mask]
        return gram_of(own, products)


def _floats(content: bytes) -> Floats:
    """Decodes numbers that were checked when they came. Raises BadRecord where state is damaged."""
    if len(content) % 8:
        raise BadRecord("malformed", f"state: {len(content)} bytes are no numbers")
    return np.frombuffer(content, "<f8").astype(np.float64)


def _matrix(content: bytes, rows: int, columns: int) -> Floats:
    """As :func:`_floats`, in the shape (rows, columns)."""
    numbers = _floats(content)
    if len(numbers) != rows * columns:
        raise BadRecord("malformed", f"state: {len(numbers)} numbers, and {rows} x {columns} are a matrix")
    return numbers.reshape(rows, columns)
