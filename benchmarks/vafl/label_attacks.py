"""What members of a vertical federation find out about labels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from benchmarks.attacks import Attack
from benchmarks.commands import Floats
from benchmarks.vafl.attacked import (
    ENTITIES,
    PARTIES,
    Figures,
    Heard,
    by_entity,
    heard_of,
    learn,
    noisy_replies,
    run,
    settings,
    started,
    table,
    vectors,
)
from streamfl.contract.role import Received, Record, Send
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.learning.accuracy import area_under_curve
from streamfl.records.labels import Label
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.coordinator.role import VaflCoordinator
from streamfl.vafl.functions.heads import LOGISTIC, OutputLoss, SumHead
from streamfl.vafl.given import CoordinatorGiven
from streamfl.vafl.messages import REPLY, Embedding

AUC, CHANGED, ALL = "AUC of labels", "AUC of whether the label changed", "all parties together"
# By one noise with a deviation of 1.
ONE_LABEL = float(ndtr(1 / np.sqrt(2)))


def sign_of_a_gradient(folder: Path) -> Iterator[Attack]:
    """A party takes the sign of each gradient for the label."""

    def area(sections: Figures) -> float:
        heard = run(settings(sections))
        labels = table()[1][[int(one.entity) for one in heard.gradients["a"]]]
        return area_under_curve(-vectors(heard.gradients["a"])[:, 0], labels)

    name, found = "the sign of a gradient", area(noisy_replies(folder))
    yield Attack(name, "a party", AUC, area({}), "reply_noise = 1", found, ONE_LABEL, 0.5)


def many_gradients(folder: Path) -> Iterator[Attack]:
    """Both parties show every entity five times, and average what they are told. They know the prediction: it
    is of their sum."""
    passes = 5
    kept = {"alignment": {"keep": True}}
    labels = table()[1][:ENTITIES]

    def area(own: VaflSettings, anew: float) -> float:
        heard = run(own, passes)
        told = _labels_as_told(heard)
        told += np.random.default_rng(7).normal(0.0, anew, told.shape) if anew else 0.0
        return area_under_curve(told.mean(axis=0), labels)

    plain, protected = area(settings(kept), 1.0), area(settings({**kept, **noisy_replies(folder)}), 0.0)
    name, protection = "5 gradients of both parties, averaged", "one noise an entity, not one a gradient"
    yield Attack(name, ALL, AUC, plain, protection, protected, ONE_LABEL, 0.5)


def an_entity_that_returns(folder: Path) -> Iterator[Attack]:
    """Entities are learnt from, forgotten, and shown again with a label: is it the one of before?"""
    changed = _changed()
    with closing(started(settings(noisy_replies(folder)), table()[1].copy())) as federation:
        learn(federation)
        federation.labels[changed] = 1 - federation.labels[changed]
        learn(federation)
        first, second = _labels_as_told(heard_of(federation))
    name, protection = "an entity that returns", "each life has its own noise"
    yield Attack(name, ALL, CHANGED, None, protection, _apart(first, second), _bound_of_a_change(), 0.5)


def _changed() -> NDArray[np.bool_]:
    """Entities whose label is another one the second time."""
    return np.random.default_rng(5).random(ENTITIES) < 0.5


def _apart(first: Floats, second: Floats) -> float:
    return area_under_curve(np.abs(first - second), _changed().astype(float))


def _bound_of_a_change() -> float:
    draws = np.random.default_rng(0).normal(0.0, np.sqrt(2), (2, 1_000_000))
    return float((np.abs(draws[0] + 1) > np.abs(draws[1])).mean())


def two_federations(folder: Path) -> Iterator[Attack]:
    """The same entities are shown in two federations with one secret file: is it the same label, and what do
    both tell together?"""

    def told(name: str, labels: Floats) -> Floats:
        own = settings({**noisy_replies(folder), "federation": {"name": name}})
        with closing(started(own, labels)) as federation:
            learn(federation)
            return np.asarray(_labels_as_told(heard_of(federation))[0])

    of_first = table()[1][:ENTITIES]
    of_second = np.where(_changed(), 1 - of_first, of_first)
    first = told("first", of_first)
    plain, protected = (_apart(first, told(name, of_second)) for name in ("first", "second"))
    name, protection = "two federations with one secret", "another federation.name, another noise"
    yield Attack(name, ALL, CHANGED, plain, protection, protected, _bound_of_a_change(), 0.5)
    found = area_under_curve((first + told("second", of_first)) / 2, of_first)
    protection = "reply_noise = 1 in each"
    yield Attack("the same, averaged", ALL, AUC, None, protection, found, float(ndtr(1.0)), 0.5)


def last_digits_of_a_label(folder: Path) -> Iterator[Attack]:
    """A party shows an output at which nothing but the label and its noise is in the gradient, in single
    precision, and asks of which label such a sum can be.
    """
    noise, repeats = 2.0, 4000
    draws = np.random.default_rng(2)
    values = np.array([-1.0, 0.0], np.float32)
    drawn = (noise * ndtri((draws.integers(0, 2**52, (2, repeats)) + 0.5) * 2.0**-52)).astype(np.float32)
    secret = draws.bytes(32).hex()
    own = np.array(
        [told_of_a_label(LOGISTIC, noise, label, repeats, secret, np.float32)[:, 0] for label in (1.0, 0.0)]
    )

    def area(told: NDArray[np.float32]) -> float:
        both = told.ravel()
        able = [_reachable_in_single(both, value).astype(float) for value in values]
        return area_under_curve(able[0] - able[1] - both / 100, np.repeat([1.0, 0.0], repeats))

    bound = float(ndtr(1 / noise / np.sqrt(2)))
    name, protection = "the last digits of a noisy label", "label and noise on one grid"
    plain = area(values[:, None] + drawn)
    yield Attack(name, "a party", AUC, plain, protection, area(own), bound, 0.5)


def told_of_a_label(
    loss: OutputLoss,
    noise: float,
    label: float,
    count: int,
    secret: str,
    dtype: type[np.float32] | type[np.float64],
) -> NDArray[Any]:
    """What a party is told of so many entities with this label, less what it can compute by itself, (count,
    outputs)."""
    federation = {"name": "f", "parties": ["a"], "embedding_size": loss.outputs}
    settings = VaflSettings.model_validate(
        {
            "federation": {**federation, "precision": np.dtype(dtype).name},
            "role": {"kind": "vafl-coordinator"},
            "labels": {"topic": "labels", "label": "y"},
            "head": {"kind": "network"},
            "privacy": {"reply_noise": noise, "secret_file": "secret"},
        }
    )
    role = VaflCoordinator(settings, CoordinatorGiven(SumHead(dtype), loss, secret=secret))
    role.open(0)
    # The derivative by an output of so little has nothing but the label in it, whatever the precision.
    shown = encode_array(np.full(loss.outputs, -1000.0 if loss.name == "logistic" else 0.0, dtype))
    batch = []
    for number in range(count):
        name = f"{label}/{number}"
        embedding = Embedding(VERSION, role.fingerprint, name, 1, number, 0, shown)
        for channel, message in (("labels", Label(name, name, label)), ("embeddings/a", embedding)):
            batch.append(Received(channel, message, Record(channel, 0, 0, name.encode(), b"")))
    replies = [
        one for one in role.receive(batch, 0.0) if isinstance(one, Send) and one.channel == "gradients/a"
    ]
    return np.array([np.frombuffer(REPLY.decode(one.value).gradient, dtype) for one in replies])


def _reachable_in_single(told: NDArray[np.float32], value: np.float32) -> NDArray[np.bool_]:
    """Whether value + z, z a number of single precision, rounded to one, can be what was told."""
    nearest = (told.astype(np.float64) - value).astype(np.float32)
    near = [nearest, np.nextafter(nearest, np.float32(-np.inf)), np.nextafter(nearest, np.float32(np.inf))]
    return np.asarray((value + np.array(near) == told).any(axis=0))


def _labels_as_told(heard: Heard) -> Floats:
    """The prediction less the gradient, by pass, (passes, ENTITIES): the label and the noise on it."""
    sums: dict[str, list[float]] = {}
    for party in PARTIES:
        for entity, numbers in by_entity(heard.embeddings[party]).items():
            sums.setdefault(entity, []).extend(numbers)
    told = by_entity(heard.gradients["a"])
    found = []
    for entity in map(str, range(ENTITIES)):
        shown = np.array(sums[entity]).reshape(len(PARTIES), -1).sum(axis=0)
        found.append(1 / (1 + np.exp(-shown)) - np.array(told[entity]))
    return np.array(found).T
