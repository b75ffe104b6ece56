"""The expected results of a federation, from its users' records, the parties that answered in time, and all
secrets."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from dp_frank_wolfe.proof.ledgers import anchor
from dp_frank_wolfe.proof.scenario import NAME, DPFrankWolfeScenario, S
from numpy.typing import NDArray

from streamfl.dp_frank_wolfe.learning.blocks import step_length
from streamfl.dp_frank_wolfe.learning.gram import LEAST_EIGENVALUE, doubt, gram_of
from streamfl.dp_frank_wolfe.learning.iterate import Iterate, Vertex
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.learning.refit import refit
from streamfl.dp_frank_wolfe.learning.selection import clip_rows
from streamfl.dp_frank_wolfe.messages import Answers, Ask, FittedModel, Message, read_content
from streamfl.dp_frank_wolfe.party.fit import ReleaseContext
from streamfl.dp_frank_wolfe.party.selection import PartySelection
from streamfl.dp_frank_wolfe.party.window import Bounds, Window, freeze
from streamfl.dp_frank_wolfe.tools import direct

__all__ = [
    "Presence",
    "expected",
    "expected_estimate",
    "numbers_of",
    "place_of",
    "possible_windows",
    "possibly_heard",
    "presence",
    "weights_of",
]

Floats = NDArray[np.float64]


@dataclass
class Presence:
    """Presence in a fit. used: iterations and parties whose answers the server used. late: those whose
    answers came too late.

    stopped: the fit ended before its last step.
    asked: iterations and parties that were asked.
    """

    used: set[tuple[int, str]] = field(default_factory=set)
    late: set[tuple[int, str]] = field(default_factory=set)
    asked: set[tuple[int, str]] = field(default_factory=set)
    stopped: bool = False

    def is_absent(self, iteration: int, party: str) -> bool:
        return (iteration, party) not in self.used | self.late

    def is_late(self, iteration: int, party: str) -> bool:
        return (iteration, party) in self.late


def weights_of(content: Ask | FittedModel, columns: int) -> Floats:
    """x of a party's columns, from a message."""
    x = np.zeros(columns)
    x[np.frombuffer(content.columns, "<u4")] = np.frombuffer(content.weights, "<f8")
    return x


def presence(
    chosen: DPFrankWolfeScenario,
    asks: Mapping[str, Sequence[Message]],
    releases: Mapping[str, Sequence[Message]],
    stops: bool = True,
) -> Presence:
    """Whose answers the server used in a fit: those by which x had moved when the party next received it.

    asks, releases: by party, the messages of one window.
    stops: a fit whose last answers moved nothing has ended by its gap.
    """
    found, public = Presence(), Public(chosen.of(S))
    unmoved: set[tuple[int, str]] = set()
    for party in chosen.parties:
        told = [one for one in asks[party] if one.kind in ("ask", "model")]
        answered = {
            one.iteration: read_content(one.content, Answers)
            for one in releases[party]
            if one.kind == "answers"
        }
        for one, following in itertools.pairwise(told):
            if one.iteration not in answered:
                continue
            x = weights_of(read_content(one.content, Ask), chosen.columns[party])
            after = weights_of(
                read_content(following.content, Ask if following.kind == "ask" else FittedModel), len(x)
            )
            iterate = Iterate(public.blocks, chosen.columns)
            iterate.x[party][:] = x
            answers = answered[one.iteration].answers
            vertices = {
                answer.block: Vertex(answer.column, 1 if answer.positive else -1) for answer in answers
            }
            iterate.step(vertices, step_length(one.iteration, public.sampling.least))
            place = one.iteration, party
            (found.used if np.array_equal(iterate.x[party], after) else found.late).add(place)
            unmoved |= {place} if np.array_equal(x, after) else set()
        found.asked |= {(one.iteration, party) for one in told if one.kind == "ask"}
    if stops and math.isinf(public.cost) and found.asked:
        # If all parties sent their gap and it is small, the fit ends without the step. If all were late, they
        # were asked again.
        last = max(iteration for iteration, _ in found.asked)
        places = {(last, party) for party in chosen.parties}
        if places <= unmoved:
            found.stopped, found.used, found.late = True, found.used | places, found.late - places
    return found


def possibly_heard(
    chosen: DPFrankWolfeScenario, releases: Mapping[str, Sequence[Message]]
) -> list[tuple[list[str], list[str]]]:
    """For estimators that choose once: whose choices, and whose products, the server may have received in
    time.

    releases: by party, the messages of one window. The set of all that answered comes first. A patient server
    receives all."""

    def subsets(of: Sequence[str]) -> list[list[str]]:
        sizes = [len(of)] if chosen.patient else range(len(of), -1, -1)
        return [list(some) for size in sizes for some in itertools.combinations(of, size)]

    def who(kind: str, among: Sequence[str]) -> list[str]:
        return [party for party in among if any(one.kind == kind for one in releases[party])]

    found = []
    for choosers in subsets(who("chosen", chosen.parties)):
        if chosen.sections["learning"]["estimator"] == "marginal":
            found.append((choosers, choosers))
        else:
            found += [(choosers, takers) for takers in subsets(who("products", choosers))]
    return found


def place_of(chosen: DPFrankWolfeScenario, party: str, window: int) -> ReleaseContext:
    """Where a party's releases of a window belong."""
    own, privacy = anchor(chosen, party), chosen.of(party).privacy
    # Without a promise noise is drawn from what everybody knows.
    known = hashlib.sha256(repr(("dp-frank-wolfe", NAME, chosen.seed, party)).encode()).digest()
    secret = chosen.secret(party) if privacy.is_private else known
    return ReleaseContext(f"{own.ledger} {own.identity.hex()}", NAME, party, window, secret)


def possible_windows(chosen: DPFrankWolfeScenario, party: str, names: Sequence[str]) -> list[Window]:
    """The windows that could be frozen of these entities: with any of each entity's records of columns, and
    any of its labels."""
    settings = chosen.of(party)
    columns, bounds = chosen.columns[party], settings.bounds
    rows = [
        _different([numbers_of(content, columns) for content in chosen.known[party, name]]) for name in names
    ]
    labels = [_different([numbers_of([content], 1) for content in chosen.labels[name]]) for name in names]
    feature_bounds = Bounds(np.full(columns, bounds.centre), np.full(columns, bounds.bound))
    label_bounds = Bounds(np.array([bounds.label_centre]), np.array([bounds.label_bound]))
    found = []
    for own in itertools.product(*rows):
        for told in itertools.product(*labels):
            found.append(
                freeze(np.array(own), np.array(told)[:, 0], feature_bounds, label_bounds, chosen.rows)
            )
    return found


def expected(
    chosen: DPFrankWolfeScenario,
    windows: Mapping[str, Window],
    window: int,
    there: Presence,
    places: Mapping[str, ReleaseContext],
) -> direct.DirectFit:
    """The fit of these windows, with the same parties' answers used."""
    public = Public(chosen.of(S))
    learning = public.settings.learning
    return direct.fit(
        windows,
        public.sampling,
        learning.iterations,
        public.sketch(window),
        {party: public.fit_plan(party, window) for party in windows},
        delta=public.settings.privacy.delta,
        window=window,
        candidates=learning.candidates,
        until_gap=learning.tolerance if math.isinf(public.cost) else None,
        absent=there.is_absent,
        late=there.is_late,
        places=lambda party, number, secret: places[party],
        show_objective=False,
    )


def expected_estimate(
    chosen: DPFrankWolfeScenario,
    windows: Mapping[str, Window],
    places: Mapping[str, ReleaseContext],
    choosers: Sequence[str],
    takers: Sequence[str],
) -> dict[str, Floats]:
    """The same for the estimators that choose once. Returns x by party.

    choosers: parties whose choices came in time.
    takers: those whose products came in time too; without a second round, the same.
    """
    public = Public(chosen.of(S))
    learning, rows = public.settings.learning, chosen.rows
    plans = {party: public.selection_plan(party) for party in windows}
    members = {party: PartySelection(windows[party], plans[party], places[party]) for party in choosers}
    x = {party: np.zeros(count) for party, count in chosen.columns.items()}
    if not takers:
        return x
    told = {}
    for party, member in members.items():
        member.choose()
        told[party] = member.values()
    values = np.concatenate([told[party] for party in takers])
    if learning.estimator == "marginal":
        norms = np.concatenate([member.norms() for member in members.values()])
        found = refit(np.diag(norms), values, learning.radius, LEAST_EIGENVALUE)
    else:
        shown = {party: member.rows() for party, member in members.items()}
        own, products = {}, {}
        for party, member in members.items():
            given = {name: one for name, one in shown.items() if name != party}
            others = np.hstack([np.zeros((rows, 0)), *given.values()])
            # In the order in which parties release them: noise depends on all earlier releases.
            gram, product = member.gram(), member.products(clip_rows(others, plans[party].row_bound))
            if party in takers:
                kept = [np.full(one.shape[1], name in takers) for name, one in given.items()]
                own[party], products[party] = (
                    gram,
                    product[:, np.concatenate([np.zeros(0, dtype=bool), *kept])],
                )
        found = refit(gram_of(own, products), values, learning.radius, LEAST_EIGENVALUE + doubt(plans, rows))
    at = 0
    for party in takers:
        columns = members[party].chosen
        x[party][columns] = found[at : at + len(columns)]
        at += len(columns)
    return x


def numbers_of(content: object, count: int) -> tuple[float, ...]:
    """``count`` numbers. NaN where the content cannot be read."""
    if isinstance(content, list) and len(content) == count and all(isinstance(one, float) for one in content):
        return tuple(content)
    return (np.nan,) * count


def _different(contents: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
    return list({repr(content): content for content in contents}.values())
