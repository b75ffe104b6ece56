"""What members of a vertical federation, and readers of its predictions, find out about a party's records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from benchmarks.attacks import Attack
from benchmarks.commands import Floats
from benchmarks.vafl.attacked import (
    BATCH,
    ENTITIES,
    PARTIES,
    Figures,
    Heard,
    by_entity,
    learn,
    noisy_replies,
    run,
    secret_file,
    settings,
    started,
    table,
    vectors,
)
from streamfl.learning.accuracy import area_under_curve
from streamfl.learning.optimisers import optimiser_named
from streamfl.privacy.keyed_noise import noisy
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.functions.models import embedding_function

NETWORK: Mapping[str, Mapping[str, Any]] = {
    "embedding": {"hidden": [16]},
    "head": {"kind": "network", "hidden": [16]},
}
# A feature counts as found within so much, of a column with mean 0 and deviation 1.
NEAR = 0.01
STARTS = 8


def inverted_embeddings(folder: Path) -> Iterator[Attack]:
    """Who knows the configuration computes the first parameters, and looks for the features that give the
    embedding. From features and gradients the party's steps are computed, and with them all later embeddings
    inverted.
    """
    own = settings(NETWORK, 8)
    seeded, secret = (_inverted(own, run(own, own_start=own_start)) for own_start in (False, True))
    figure = "share of records with all 4 features found"
    protection = "first parameters from a secret of the party's own"
    for name, attacker, count in (
        ("first embeddings inverted", "coordinator, or who reads embeddings", BATCH),
        (f"a party's {ENTITIES // BATCH} steps followed", "coordinator", ENTITIES),
    ):
        plain, protected = (float(np.mean(found[:count])) for found in (seeded, secret))
        yield Attack(name, attacker, figure, plain, protection, protected, None, 0.0)


def _inverted(own: VaflSettings, heard: Heard) -> list[bool]:
    """Of which of party a's records every feature was found, in the order of its embeddings."""
    truth = table()[0][0]
    function = embedding_function(own, truth.shape[1])
    parameters = function.initial(own.federation.seed, "a").astype(np.float64)
    optimiser = optimiser_named(own.optimiser, own.party_rate(own.standardise), function.size)
    gradients = {one.entity: np.frombuffer(one.gradient, np.float32) for one in heard.gradients["a"]}
    found: list[bool] = []
    for step in range(len(heard.embeddings["a"]) // BATCH):
        batch = heard.embeddings["a"][step * BATCH : (step + 1) * BATCH]
        inputs = _solve(
            lambda rows: function.forward(parameters, rows).outputs, vectors(batch), truth.shape[1]
        )
        found += (np.abs(inputs - truth[[int(one.entity) for one in batch]]).max(axis=1) <= NEAR).tolist()
        cotangents = np.array([gradients[one.entity] for one in batch], np.float64)
        gradient = function.backward(parameters, function.forward(parameters, inputs), cotangents) / len(
            batch
        )
        optimiser.step(parameters, gradient, step + 1)
    return found


def _solve(
    function: Callable[[Floats], NDArray[Any]],
    shown: Floats,
    size: int,
    steps: int = 60,
) -> Floats:
    """Inputs (n, size) for which the function comes nearest to ``shown``: Levenberg and Marquardt's method
    from several points."""
    draws = np.random.default_rng(0)
    best, least = np.zeros((len(shown), size)), np.full(len(shown), np.inf)
    for _ in range(STARTS):
        inputs, damping = draws.normal(size=(len(shown), size)), np.full(len(shown), 1e-2)
        rest = function(inputs) - shown
        error = np.square(rest).sum(axis=1)
        for _ in range(steps):
            there = [function(inputs + 1e-5 * unit) - function(inputs - 1e-5 * unit) for unit in np.eye(size)]
            slopes = np.stack(there, 2) / 2e-5
            normal = np.einsum("noi,noj->nij", slopes, slopes) + damping[:, None, None] * np.eye(size)
            moved = inputs - np.linalg.solve(normal, np.einsum("noi,no->ni", slopes, rest)[..., None])[..., 0]
            rest_there = function(moved) - shown
            error_there = np.square(rest_there).sum(axis=1)
            better = error_there < error
            inputs, rest = (
                np.where(better[:, None], new, old) for new, old in ((moved, inputs), (rest_there, rest))
            )
            error = np.minimum(error, error_there)
            damping = np.clip(np.where(better, damping / 3, damping * 4), 1e-12, 1e6)
        nearer = error < least
        best, least = np.where(nearer[:, None], inputs, best), np.minimum(error, least)
    return best


def known_records(folder: Path) -> Iterator[Attack]:
    """The coordinator knows the features of 100 entities, and fits a regression from embeddings to features
    on them."""

    def explained(sections: Figures) -> float:
        own = settings({**NETWORK, **sections}, 8)
        heard = run(own)
        truth = table()[0][0]
        shown = vectors(heard.embeddings["a"])
        truth = truth[[int(one.entity) for one in heard.embeddings["a"]]]
        # The last ones, for the parameters move least there: 100 that are known, among 400.
        shown, truth = np.hstack([shown, np.ones((len(shown), 1))])[-400:], truth[-400:]
        known = np.arange(400) % 4 == 0
        weights = np.linalg.lstsq(shown[known], truth[known], rcond=None)[0]
        rest = np.square(shown[~known] @ weights - truth[~known]).sum()
        # A fit that is worse than the mean explains nothing.
        return max(0.0, float(1 - rest / np.square(truth[~known] - truth[~known].mean(axis=0)).sum()))

    strengths = {
        "embedding_norm": 1.0,
        "embedding_noise": 4.0,
        "gradient_norm": 0.1,
        "gradient_noise": 4.0,
    }
    noise = {"privacy": {**strengths, "secret_file": secret_file(folder)}}
    name, figure = "100 records known, regression", "share of the other records' variance explained"
    plain, protected = explained({}), explained(noise)
    yield Attack(name, "coordinator", figure, plain, "[privacy], C 1, c 4", protected, None, 0.0)


def the_other_party(folder: Path) -> Iterator[Attack]:
    """Of two parties with the sum head, one takes its own embedding off the prediction that its gradient and
    the label tell."""

    def correlation(sections: Figures) -> float:
        heard = run(settings(sections))
        labels = table()[1]
        own, other = _shown(heard, "a"), _shown(heard, "b")
        told = {entity: numbers[-1] for entity, numbers in by_entity(heard.gradients["a"]).items()}
        names = [one.entity for one in heard.gradients["a"]][BATCH:]
        prediction = np.clip([told[name] + labels[int(name)] for name in names], 1e-6, 1 - 1e-6)
        guess = np.log(prediction / (1 - prediction)) - [own[name] for name in names]
        return _correlation(guess, [other[name] for name in names])

    name, by = "the other party's embedding", "a party that learns the label"
    plain, protected = correlation({}), correlation(noisy_replies(folder))
    yield Attack(name, by, "correlation", plain, "reply_noise = 1", protected, None, 0.0)


def revisions(folder: Path) -> Iterator[Attack]:
    """Who may read predictions compares two of one entity in log odds, or looks at the only one. The parties
    have learnt before."""
    learnt = ENTITIES // 2

    def correlation(**alignment: Any) -> float:
        learning = {"wait_for": 1, "in_flight": None}
        heard = run(settings({"learning": learning, "alignment": alignment}), labelled=learnt)
        odds: dict[str, list[float]] = {}
        for one in heard.predictions:
            odds.setdefault(one["entity"], []).append(
                float(np.log(one["prediction"] / (1 - one["prediction"])))
            )
        shown = {party: _shown(heard, party) for party in PARTIES}
        names = [name for name in odds if int(name) >= learnt]
        values = [odds[name][-1] - (odds[name][0] if len(odds[name]) > 1 else 0.0) for name in names]
        return max(_correlation(values, [shown[party][name] for name in names]) for party in PARTIES)

    loose = correlation(quorum=1)
    for protection, alignment in (
        ("alignment.revise = false", {"quorum": 1, "revise": False}),
        ("alignment.quorum = 2, of 2 parties", {"quorum": 2}),
    ):
        name, figure = "predictions compared", "largest correlation with an embedding"
        found = correlation(**alignment)
        yield Attack(name, "who reads predictions", figure, loose, protection, found)


def last_digits(folder: Path) -> Iterator[Attack]:
    """The attacker knows that a noisy number is of one of two values, and asks of which such a sum can be, to
    the last bit."""
    noise, size, repeats = 8.0, 8, 1500
    values = np.array([[1.0] + [0.0] * (size - 1), [-0.3, 0.4, 0.5, 0.5, 0.3, 0.2, 0.3, 0.1]])
    draws = np.random.default_rng(1)
    drawn = noise * ndtri((draws.integers(0, 2**52, (2, repeats, size)) + 0.5) * 2.0**-52)
    plain = values[:, None] + drawn
    secret = draws.bytes(32).hex()
    own = np.array(
        [
            [noisy(value, noise, 1.0, secret, which, n) for n in range(repeats)]
            for which, value in enumerate(values)
        ]
    )

    def area(told: Floats) -> float:
        both = np.concatenate(list(told))
        able = [reachable(both, value, noise).sum(axis=1) for value in values]
        return area_under_curve((able[0] - able[1]).astype(float), np.repeat([1.0, 0.0], repeats))

    bound = float(ndtr(np.linalg.norm(values[0] - values[1]) / noise / np.sqrt(2)))
    name, protection = "the last digits of noisy numbers", "values and noise on one grid"
    yield Attack(
        name, "who reads embeddings", "AUC of two records", area(plain), protection, area(own), bound, 0.5
    )


def reachable(told: NDArray[Any], value: NDArray[Any] | float, noise: float) -> NDArray[np.bool_]:
    """Whether value + noise * z can be what was told, to the last bit, z being a normal quantile of 52
    bits."""
    middle = np.rint(ndtr((told - value) / noise) * 2.0**52 - 0.5)
    words = np.clip([middle + step for step in range(-8, 9)], 0, 2.0**52 - 1)
    return np.asarray((value + noise * ndtri((words + 0.5) * 2.0**-52) == told).any(axis=0))


def another_norm(folder: Path) -> Iterator[Attack]:
    """The same records are shown with C = 1 and then, with the same secret, with C = 2: the difference would
    be without noise."""
    noise: dict[str, Any] = {"embedding_noise": 4.0, "secret_file": secret_file(folder)}
    shown = []
    for norm in (1.0, 2.0):
        heard = run(settings({**NETWORK, "privacy": {**noise, "embedding_norm": norm}}, 8), labelled=0)
        shown.append(vectors(heard.embeddings["a"][:BATCH]))
    clean = run(settings(NETWORK, 8), labelled=0)
    direction = vectors(clean.embeddings["a"][:BATCH])
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    found = _correlation((shown[1] - shown[0]).ravel(), direction.ravel())
    drawn = np.random.default_rng(1).normal(0.0, noise["embedding_noise"], direction.shape)
    plain = _correlation(((2 * direction + drawn) - (direction + drawn)).ravel(), direction.ravel())
    name, protection = "shown again with another norm", "the noise is drawn by all that it hides"
    yield Attack(name, "coordinator", "correlation with the records", plain, protection, found, None, 0.0)


def membership(folder: Path) -> Iterator[Attack]:
    """Was an entity among those that were learnt from, five times over? The attacker has the model, and looks
    at the loss."""
    inputs, labels = table()
    with closing(started(settings({**NETWORK, "alignment": {"keep": True}}, 8))) as federation:
        learn(federation, passes=5)
        losses = [
            federation.evaluate([one[row : row + 1] for one in inputs], labels[row : row + 1]).loss
            for row in range(2 * ENTITIES)
        ]
    found = area_under_curve(-np.array(losses), np.repeat([1.0, 0.0], ENTITIES))
    name, by, figure = "membership by the loss", "all members together", "AUC of having been learnt from"
    yield Attack(name, by, figure, found, "none", None, None, 0.5)


def _shown(heard: Heard, party: str) -> dict[str, float]:
    return {entity: numbers[-1] for entity, numbers in by_entity(heard.embeddings[party]).items()}


def _correlation(one: Sequence[float] | NDArray[Any], other: Sequence[float] | NDArray[Any]) -> float:
    if len(one) < 2 or np.std(one) == 0 or np.std(other) == 0:
        return 0.0
    return float(abs(np.corrcoef(one, other)[0, 1]))
