"""``python -m benchmarks.vafl.attacks``: what members of a vertical federation find out about each other, by trying.

Each attack is run against a federation without the protection and with it, on images that an installed package carries. What an
attacker sees is what lies on its topics; what it knows besides is said with each attack.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from scipy.special import ndtr, ndtri

from streamfl.learning.accuracy import area_under_curve
from streamfl.learning.optimisers import optimiser_named
from streamfl.privacy.keyed_noise import noisy
from streamfl.records.labels import Label
from streamfl.role import Received, Record, Send
from streamfl.simulation.tables import numbers, read_data
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.coordinator import Alignment, HeadSteps, VaflCoordinator
from streamfl.vafl.heads import LOGISTIC, OutputLoss, SumHead
from streamfl.vafl.lab.federation import VerticalFederation
from streamfl.vafl.messages import EMBEDDING, REPLY, Embedding
from streamfl.vafl.models import embedding_function
from streamfl.wire import VERSION, encode_array

__all__ = ["ATTACKS", "Attack", "main", "reachable", "told_of_a_label"]

# Pieces of outdoor photographs; the label: whether people made what is on them.
DATA, MADE_BY_PEOPLE = "river:ImageSegments", {"brickface", "cement", "path", "window"}
# Standardised columns of two parties. Those of the first are numbers of which nearly all differ.
PARTIES = {"a": (8, 9, 10, 11), "b": (0, 1, 3, 5, 15, 16, 17)}
ENTITIES = 960
BATCH = 16
# A feature counts as found within so much, of a column with mean 0 and deviation 1.
NEAR = 0.01
STARTS = 8
Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Attack:
    """What was found. plain, protected: the figure without and with the protection; None where that was not run.

    bound: what the protection promises. chance: the figure of a guess.
    """

    name: str
    attacker: str
    figure: str
    plain: float | None
    protection: str
    protected: float | None
    bound: float | None = None
    chance: float | None = None


@cache
def table() -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
    """Inputs by party, (rows, features) with mean 0 and deviation 1, and labels 0 and 1, in one random order."""
    data = read_data(DATA)
    inputs = numbers(data, data.inputs(["y"]), DATA)
    labels = np.array([str(kind) in MADE_BY_PEOPLE for kind in data.columns["y"]], float)
    order = np.random.default_rng(0).permutation(len(labels))
    inputs, labels = inputs[order], labels[order]
    inputs = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    return [inputs[:, list(own)] for own in PARTIES.values()], labels


def settings(sections: Mapping[str, Mapping[str, Any]], size: int = 1) -> VaflSettings:
    """Of any member; ``sections`` are added to what all attacks have."""
    content: dict[str, Any] = {
        "federation": {"name": "attacked", "seed": 3, "parties": list(PARTIES), "embedding_size": size},
        "role": {"kind": "simulation"},
        "learning": {"optimiser": "sgd", "learning_rate": 0.1, "batch_size": BATCH, "in_flight": BATCH, "wait_for": 2},
        "alignment": {"quorum": 2},
    }
    for name, section in sections.items():
        content[name] = {**content.get(name, {}), **section}
    return VaflSettings.model_validate(content)


@dataclass
class Heard:
    """What lay on the topics of a federation when it was through, by party where that makes a difference."""

    embeddings: dict[str, list[Any]]
    gradients: dict[str, list[Any]]
    predictions: list[dict[str, Any]]


def run(own: VaflSettings, passes: int = 1, labelled: int = ENTITIES, own_start: bool = False) -> Heard:
    """Let a federation learn from entities of which the first ``labelled`` have their label from the beginning, the others none."""
    inputs, labels = table()
    federation = VerticalFederation(
        own, [one[:ENTITIES] for one in inputs], labels[:ENTITIES], arrivals=BATCH, own_start=own_start
    )
    federation.write_labels(range(labelled))
    federation.replay([list(range(ENTITIES)) * passes] * len(inputs))
    federation.run()
    heard = heard_of(federation)
    federation.close()
    return heard


def heard_of(federation: VerticalFederation) -> Heard:
    """Everything that lies on its topics by now."""
    name, read = federation.settings.federation.name, federation.bus.read
    return Heard(
        {party: [EMBEDDING.decode(record.value or b"") for record in read(f"{name}.{party}.embeddings")] for party in PARTIES},
        {party: [REPLY.decode(record.value or b"") for record in read(f"{name}.{party}.gradients")] for party in PARTIES},
        [json.loads(record.value or b"") for record in read(f"{name}.predictions")],
    )


def secret_file(folder: Path, number: int = 0) -> str:
    """A file with a secret of a member of these attacks."""
    path = folder / f"secret-{number}"
    path.write_bytes(np.random.default_rng(number).bytes(32))
    path.chmod(0o600)
    return str(path)


# ---- labels


def sign_of_a_gradient(folder: Path) -> Iterator[Attack]:
    """A party takes the sign of each gradient for the label."""

    def area(sections: Figures) -> float:
        heard = run(settings(sections))
        labels = table()[1][[int(one.entity) for one in heard.gradients["a"]]]
        return area_under_curve(-_first_numbers(heard.gradients["a"]), labels)

    noise = {"privacy": {"reply_noise": 1.0, "secret_file": secret_file(folder)}}
    protection, bound = "reply_noise = 1", float(ndtr(1 / np.sqrt(2)))
    yield Attack("the sign of a gradient", "a party", "AUC of labels", area({}), protection, area(noise), bound, 0.5)


def many_gradients(folder: Path) -> Iterator[Attack]:
    """Both parties show every entity five times, and average what they are told. They know the prediction: it is of their sum."""
    passes = 5
    kept = {"alignment": {"keep": True}}
    noise = {"privacy": {"reply_noise": 1.0, "secret_file": secret_file(folder)}}
    labels = table()[1][:ENTITIES]

    def area(own: VaflSettings, anew: float) -> float:
        heard = run(own, passes)
        told = _labels_as_told(heard)
        told += np.random.default_rng(7).normal(0.0, anew, told.shape) if anew else 0.0
        return area_under_curve(told.mean(axis=0), labels)

    bound = float(ndtr(1 / np.sqrt(2)))
    plain, protected = area(settings(kept), 1.0), area(settings({**kept, **noise}), 0.0)
    name, figure = "5 gradients of both parties, averaged", "AUC of labels"
    yield Attack(name, "all parties together", figure, plain, "one noise an entity, not one a gradient", protected, bound, 0.5)


def an_entity_that_returns(folder: Path) -> Iterator[Attack]:
    """Entities are learnt from, forgotten, and shown again with a label: is it the one of before?"""
    inputs, labels = table()
    noise = {"privacy": {"reply_noise": 1.0, "secret_file": secret_file(folder)}}
    changed = np.random.default_rng(5).random(ENTITIES) < 0.5
    federation = VerticalFederation(settings(noise), [one[:ENTITIES] for one in inputs], labels[:ENTITIES].copy())
    order = list(range(ENTITIES))
    for life in range(2):
        if life:
            federation.labels[changed] = 1 - federation.labels[changed]
        federation.write_labels(order)
        federation.replay([order] * 2)
        federation.run()
    heard = heard_of(federation)
    federation.close()
    first, second = _labels_as_told(heard)
    found = area_under_curve(np.abs(first - second), changed.astype(float))
    draws = np.random.default_rng(0).normal(0.0, np.sqrt(2), (2, 1_000_000))
    bound = float((np.abs(draws[0] + 1) > np.abs(draws[1])).mean())
    figure = "AUC of whether the label changed"
    yield Attack("an entity that returns", "all parties together", figure, None, "each life has its own noise", found, bound, 0.5)


def two_federations(folder: Path) -> Iterator[Attack]:
    """The same entities are shown in two federations with one secret file: is it the same label, and what do both tell together?"""
    inputs, labels = table()
    noise = {"privacy": {"reply_noise": 1.0, "secret_file": secret_file(folder)}}
    changed = np.random.default_rng(5).random(ENTITIES) < 0.5

    def told(name: str, labels: NDArray[np.float64]) -> NDArray[np.float64]:
        own = settings({**noise, "federation": {"name": name}})
        federation = VerticalFederation(own, [one[:ENTITIES] for one in inputs], labels)
        federation.write_labels(range(ENTITIES))
        federation.replay([list(range(ENTITIES))] * len(inputs))
        federation.run()
        heard = heard_of(federation)
        federation.close()
        return _labels_as_told(heard)[0]

    of_first = labels[:ENTITIES]
    of_second = np.where(changed, 1 - of_first, of_first)
    first = told("first", of_first)

    def compared(name: str) -> float:
        return area_under_curve(np.abs(first - told(name, of_second)), changed.astype(float))

    draws = np.random.default_rng(0).normal(0.0, np.sqrt(2), (2, 1_000_000))
    bound = float((np.abs(draws[0] + 1) > np.abs(draws[1])).mean())
    name, by, protection = "two federations with one secret", "all parties together", "another federation.name, another noise"
    yield Attack(name, by, "AUC of whether the label changed", compared("first"), protection, compared("second"), bound, 0.5)
    found, bound = area_under_curve((first + told("second", of_first)) / 2, of_first), float(ndtr(1.0))
    yield Attack("the same, averaged", by, "AUC of labels", None, "reply_noise = 1 in each", found, bound, 0.5)


def _labels_as_told(heard: Heard) -> NDArray[np.float64]:
    """The prediction less the gradient, by pass, (passes, ENTITIES): the label and the noise on it."""
    sums: dict[int, list[float]] = {}
    for party in PARTIES:
        for one in heard.embeddings[party]:
            sums.setdefault(int(one.entity), []).append(float(np.frombuffer(one.values, np.float32)[0]))
    told: dict[int, list[float]] = {}
    for one in heard.gradients["a"]:
        told.setdefault(int(one.entity), []).append(float(np.frombuffer(one.gradient, np.float32)[0]))
    found = []
    for entity in range(ENTITIES):
        shown = np.array(sums[entity]).reshape(len(PARTIES), -1).sum(axis=0)
        found.append(1 / (1 + np.exp(-shown)) - np.array(told[entity]))
    return np.array(found).T


def _first_numbers(messages: Sequence[Any]) -> NDArray[np.float64]:
    return np.array([np.frombuffer(one.gradient, np.float32)[0] for one in messages], np.float64)


def _vectors(embeddings: Sequence[Any]) -> NDArray[np.float64]:
    """(embeddings, embedding size)."""
    return np.array([np.frombuffer(one.values, np.float32) for one in embeddings], np.float64)


# ---- features


NETWORK = {"embedding": {"hidden": [16]}, "head": {"kind": "network", "hidden": [16]}}


def inverted_embeddings(folder: Path) -> Iterator[Attack]:
    """Who knows the configuration computes the first parameters, and looks for the features that give the embedding. From features
    and gradients the party's steps are computed, and with them all later embeddings inverted.
    """
    own = settings(NETWORK, 8)
    seeded, secret = (_inverted(own, run(own, own_start=own_start)) for own_start in (False, True))
    figure, protection = "share of records with all 4 features found", "first parameters from a secret of the party's own"
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
    optimiser = optimiser_named(own.optimiser, own.learning.learning_rate, function.size)
    gradients = {one.entity: np.frombuffer(one.gradient, np.float32) for one in heard.gradients["a"]}
    found: list[bool] = []
    for step in range(len(heard.embeddings["a"]) // BATCH):
        batch = heard.embeddings["a"][step * BATCH : (step + 1) * BATCH]
        inputs = _solve(lambda rows: function.forward(parameters, rows).outputs, _vectors(batch), truth.shape[1])
        found += (np.abs(inputs - truth[[int(one.entity) for one in batch]]).max(axis=1) <= NEAR).tolist()
        cotangents = np.array([gradients[one.entity] for one in batch], np.float64)
        gradient = function.backward(parameters, function.forward(parameters, inputs), cotangents) / len(batch)
        optimiser.step(parameters, gradient, step + 1)
    return found


def _solve(
    function: Callable[[NDArray[np.float64]], NDArray[Any]], shown: NDArray[np.float64], size: int, steps: int = 60
) -> NDArray[np.float64]:
    """Inputs (n, size) for which the function comes nearest to ``shown``: Levenberg and Marquardt's method from several points."""
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
            inputs, rest = (np.where(better[:, None], new, old) for new, old in ((moved, inputs), (rest_there, rest)))
            error = np.minimum(error, error_there)
            damping = np.clip(np.where(better, damping / 3, damping * 4), 1e-12, 1e6)
        nearer = error < least
        best, least = np.where(nearer[:, None], inputs, best), np.minimum(error, least)
    return best


def known_records(folder: Path) -> Iterator[Attack]:
    """The coordinator knows the features of 100 entities, and fits a regression from embeddings to features on them."""

    def explained(sections: Figures) -> float:
        own = settings({**NETWORK, **sections}, 8)
        heard = run(own)
        truth = table()[0][0]
        shown = _vectors(heard.embeddings["a"])
        truth = truth[[int(one.entity) for one in heard.embeddings["a"]]]
        # The last ones, for the parameters move least there: 100 that are known, among 400.
        shown, truth = np.hstack([shown, np.ones((len(shown), 1))])[-400:], truth[-400:]
        known = np.arange(400) % 4 == 0
        weights = np.linalg.lstsq(shown[known], truth[known], rcond=None)[0]
        rest = np.square(shown[~known] @ weights - truth[~known]).sum()
        return float(1 - rest / np.square(truth[~known] - truth[~known].mean(axis=0)).sum())

    noise = {
        "privacy": {
            "embedding_norm": 1.0,
            "embedding_noise": 4.0,
            "gradient_norm": 0.1,
            "gradient_noise": 4.0,
            "secret_file": secret_file(folder),
        }
    }
    yield Attack(
        "100 records known, regression",
        "coordinator",
        "share of the other records' variance explained",
        explained({}),
        "[privacy], C 1, c 4",
        explained(noise),
        None,
        0.0,
    )


def the_other_party(folder: Path) -> Iterator[Attack]:
    """Of two parties with the sum head, one takes its own embedding off the prediction that its gradient and the label tell."""

    def correlation(sections: Figures) -> float:
        heard = run(settings(sections))
        labels = table()[1]
        own, other = _shown(heard, "a"), _shown(heard, "b")
        names = [one.entity for one in heard.gradients["a"]][BATCH:]
        told = dict(zip([one.entity for one in heard.gradients["a"]], _first_numbers(heard.gradients["a"]), strict=True))
        prediction = np.clip([told[name] + labels[int(name)] for name in names], 1e-6, 1 - 1e-6)
        guess = np.log(prediction / (1 - prediction)) - [own[name] for name in names]
        return _correlation(guess, [other[name] for name in names])

    noise = {"privacy": {"reply_noise": 1.0, "secret_file": secret_file(folder)}}
    yield Attack(
        "the other party's embedding",
        "a party that learns the label",
        "correlation",
        correlation({}),
        "reply_noise = 1",
        correlation(noise),
        None,
        0.0,
    )


def revisions(folder: Path) -> Iterator[Attack]:
    """Who may read predictions compares two of one entity in log odds, or looks at the only one. The parties have learnt before."""
    learnt = ENTITIES // 2

    def correlation(**alignment: Any) -> float:
        heard = run(settings({"learning": {"wait_for": 1, "in_flight": None}, "alignment": alignment}), labelled=learnt)
        odds: dict[str, list[float]] = {}
        for one in heard.predictions:
            odds.setdefault(one["entity"], []).append(float(np.log(one["prediction"] / (1 - one["prediction"]))))
        shown = {party: _shown(heard, party) for party in PARTIES}
        names = [name for name in odds if int(name) >= learnt]
        values = [odds[name][-1] - (odds[name][0] if len(odds[name]) > 1 else 0.0) for name in names]
        return max(_correlation(values, [shown[party][name] for name in names]) for party in PARTIES)

    loose = correlation(quorum=1)
    for protection, alignment in (
        ("alignment.revise = false", {"quorum": 1, "revise": False}),
        ("alignment.quorum = 2, of 2 parties", {"quorum": 2}),
    ):
        figure = "largest correlation with an embedding"
        yield Attack("predictions compared", "who reads predictions", figure, loose, protection, correlation(**alignment))


def last_digits(folder: Path) -> Iterator[Attack]:
    """The attacker knows that a noisy number is of one of two values, and asks of which such a sum can be, to the last bit."""
    noise, size, repeats = 8.0, 8, 1500
    values = np.array([[1.0] + [0.0] * (size - 1), [-0.3, 0.4, 0.5, 0.5, 0.3, 0.2, 0.3, 0.1]])
    draws = np.random.default_rng(1)
    drawn = noise * ndtri((draws.integers(0, 2**52, (2, repeats, size)) + 0.5) * 2.0**-52)
    plain = values[:, None] + drawn
    secret = draws.bytes(32).hex()
    own = np.array([[noisy(value, noise, 1.0, secret, which, n) for n in range(repeats)] for which, value in enumerate(values)])

    def area(told: NDArray[np.float64]) -> float:
        both = np.concatenate(list(told))
        able = [reachable(both, value, noise).sum(axis=1) for value in values]
        return area_under_curve((able[0] - able[1]).astype(float), np.repeat([1.0, 0.0], repeats))

    bound = float(ndtr(np.linalg.norm(values[0] - values[1]) / noise / np.sqrt(2)))
    name, protection = "the last digits of noisy numbers", "values and noise on one grid"
    yield Attack(name, "who reads embeddings", "AUC of two records", area(plain), protection, area(own), bound, 0.5)


def reachable(told: NDArray[Any], value: NDArray[Any] | float, noise: float) -> NDArray[np.bool_]:
    """Whether value + noise * z can be what was told, to the last bit, z being a normal quantile of 52 bits."""
    middle = np.rint(ndtr((told - value) / noise) * 2.0**52 - 0.5)
    words = np.clip([middle + step for step in range(-8, 9)], 0, 2.0**52 - 1)
    return np.asarray((value + noise * ndtri((words + 0.5) * 2.0**-52) == told).any(axis=0))


def last_digits_of_a_label(folder: Path) -> Iterator[Attack]:
    """A party shows an output at which nothing but the label and its noise is in the gradient, in single precision, and asks of
    which label such a sum can be.
    """
    noise, repeats = 2.0, 4000
    draws = np.random.default_rng(2)
    values = np.array([-1.0, 0.0], np.float32)
    drawn = (noise * ndtri((draws.integers(0, 2**52, (2, repeats)) + 0.5) * 2.0**-52)).astype(np.float32)
    secret = draws.bytes(32).hex()
    own = np.array([told_of_a_label(LOGISTIC, noise, label, repeats, secret, np.float32)[:, 0] for label in (1.0, 0.0)])

    def area(told: NDArray[np.float32]) -> float:
        both = told.ravel()
        able = [_reachable_in_single(both, value).astype(float) for value in values]
        return area_under_curve(able[0] - able[1] - both / 100, np.repeat([1.0, 0.0], repeats))

    bound = float(ndtr(1 / noise / np.sqrt(2)))
    name, protection = "the last digits of a noisy label", "label and noise on one grid"
    yield Attack(name, "a party", "AUC of labels", area(values[:, None] + drawn), protection, area(own), bound, 0.5)


def told_of_a_label(
    loss: OutputLoss, noise: float, label: float, count: int, secret: str, dtype: type[np.float32] | type[np.float64]
) -> NDArray[Any]:
    """What a party is told of so many entities with this label, less what it can compute by itself, (count, outputs)."""
    role = VaflCoordinator(
        parties=("a",),
        embedding_size=loss.outputs,
        head=SumHead(dtype),
        loss=loss,
        steps=HeadSteps(),
        alignment=Alignment(),
        seed=0,
        dtype=dtype,
        gradient_noise=noise,
        noise_secret=secret,
    )
    role.open(0)
    # The derivative by an output of so little has nothing but the label in it, whatever the precision.
    shown = encode_array(np.full(loss.outputs, -1000.0 if loss.name == "logistic" else 0.0, dtype))
    batch = []
    for number in range(count):
        name = f"{label}/{number}"
        embedding = Embedding(VERSION, 0, name, 1, number, 0, shown)
        for channel, message in (("labels", Label(name, name, label)), ("embeddings/a", embedding)):
            batch.append(Received(channel, message, Record(channel, 0, 0, name.encode(), b"")))
    replies = [one for one in role.receive(batch, 0.0) if isinstance(one, Send) and one.channel == "gradients/a"]
    return np.array([np.frombuffer(REPLY.decode(one.value).gradient, dtype) for one in replies])


def _reachable_in_single(told: NDArray[np.float32], value: np.float32) -> NDArray[np.bool_]:
    """Whether value + z, z a number of single precision, rounded to one, can be what was told."""
    nearest = (told.astype(np.float64) - value).astype(np.float32)
    near = [nearest, np.nextafter(nearest, np.float32(-np.inf)), np.nextafter(nearest, np.float32(np.inf))]
    return np.asarray((value + np.array(near) == told).any(axis=0))


def another_norm(folder: Path) -> Iterator[Attack]:
    """The same records are shown with C = 1 and then, with the same secret, with C = 2: the difference would be without noise."""
    noise: dict[str, Any] = {"embedding_noise": 4.0, "secret_file": secret_file(folder)}
    shown = []
    for norm in (1.0, 2.0):
        heard = run(settings({**NETWORK, "privacy": {**noise, "embedding_norm": norm}}, 8), labelled=0)
        shown.append(_vectors(heard.embeddings["a"][:BATCH]))
    clean = run(settings(NETWORK, 8), labelled=0)
    direction = _vectors(clean.embeddings["a"][:BATCH])
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    found = _correlation((shown[1] - shown[0]).ravel(), direction.ravel())
    drawn = np.random.default_rng(1).normal(0.0, noise["embedding_noise"], direction.shape)
    plain = _correlation(((2 * direction + drawn) - (direction + drawn)).ravel(), direction.ravel())
    name, protection = "shown again with another norm", "the noise is drawn by all that it hides"
    yield Attack(name, "coordinator", "correlation with the records", plain, protection, found, None, 0.0)


def membership(folder: Path) -> Iterator[Attack]:
    """Was an entity among those that were learnt from, five times over? The attacker has the model, and looks at the loss."""
    inputs, labels = table()
    kept = {"alignment": {"keep": True}}
    federation = VerticalFederation(settings({**NETWORK, **kept}, 8), [one[:ENTITIES] for one in inputs], labels[:ENTITIES])
    federation.write_labels(range(ENTITIES))
    federation.replay([list(range(ENTITIES)) * 5] * len(inputs))
    federation.run()
    losses = [
        federation.evaluate([one[row : row + 1] for one in inputs], labels[row : row + 1]).loss for row in range(2 * ENTITIES)
    ]
    federation.close()
    found = area_under_curve(-np.array(losses), np.repeat([1.0, 0.0], ENTITIES))
    yield Attack("membership by the loss", "all members together", "AUC of having been learnt from", found, "none", None, None, 0.5)


def _shown(heard: Heard, party: str) -> dict[str, float]:
    return {one.entity: float(np.frombuffer(one.values, np.float32)[0]) for one in heard.embeddings[party]}


def _correlation(one: Sequence[float] | NDArray[Any], other: Sequence[float] | NDArray[Any]) -> float:
    if len(one) < 2 or np.std(one) == 0 or np.std(other) == 0:
        return 0.0
    return float(abs(np.corrcoef(one, other)[0, 1]))


ATTACKS: dict[str, Callable[[Path], Iterator[Attack]]] = {
    function.__name__: function
    for function in (
        sign_of_a_gradient,
        many_gradients,
        an_entity_that_returns,
        two_federations,
        inverted_embeddings,
        known_records,
        the_other_party,
        revisions,
        last_digits,
        last_digits_of_a_label,
        another_norm,
        membership,
    )
}


def main() -> None:
    """Run them all, or those that are named; a table, or JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vafl.attacks", description="Attack a vertical federation.")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--only", choices=tuple(ATTACKS), action="append", help="run this one; may be given several times")
    arguments = parser.parse_args()
    found: list[Attack] = []
    with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
        for name in arguments.only or ATTACKS:
            print(f"{name} …", file=sys.stderr, flush=True)
            found += ATTACKS[name](Path(folder))
    if arguments.format == "json":
        print(json.dumps([asdict(one) for one in found], indent=2))
        return
    rows = Table("attack", "by", "figure", "without", "protection", "with it", "at most", "a guess")
    for one in found:
        numbers = [one.plain, one.protected, one.bound, one.chance]
        texts = ["" if number is None else f"{number:.3f}" for number in numbers]
        rows.add_row(one.name, one.attacker, one.figure, texts[0], escape(one.protection), *texts[1:])
    Console(width=170).print(rows)


if __name__ == "__main__":
    main()
