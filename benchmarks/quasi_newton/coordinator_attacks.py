"""What the coordinator finds out of what it decrypts, and what a party has decrypted that uploads something
else."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from scipy.stats import kstwobign

from benchmarks.attacks import Attack
from benchmarks.commands import Floats
from benchmarks.quasi_newton.attacked import GUEST_SECRET, HOST_SECRET, key_of
from benchmarks.quasi_newton.gradient_attacks import make
from streamfl.quasi_newton.encryption.encryptor import Encryptor
from streamfl.quasi_newton.encryption.fixed_point import FixedPoint, Kinds, kinds
from streamfl.quasi_newton.encryption.masks import Masks
from streamfl.quasi_newton.encryption.packing import Packing
from streamfl.quasi_newton.encryption.randomness import RandomnessContext
from streamfl.quasi_newton.learning.curvature import IterateMeans, OwnPairs
from streamfl.quasi_newton.learning.descent import DescentSettings
from streamfl.quasi_newton.tools.direct import Party, Trace, partition, train

LEARNING = DescentSettings(batch=300, memory=6, epochs=20, tolerance=0.0)
SECRETS = (GUEST_SECRET, HOST_SECRET)
ROWS, COLUMNS, RUNS = 1_200, 6, 16
# Of the attack by uploads.
ORACLE_BITS, ORACLE_BATCH, ORACLE_COLUMNS = 2048, 1000, 10


def slots_of(residues: Sequence[int], count: int, kind: FixedPoint, packing: Packing, n: int) -> list[int]:
    """What a coordinator reads in the slots of what it decrypted, as numbers of the kind or not."""
    found: list[int] = []
    for residue in residues:
        rest = int(residue) - n * (2 * int(residue) > n)
        for _ in range(min(packing.slots, count - len(found))):
            number = ((rest + (1 << packing.width - 1)) & ((1 << packing.width) - 1)) - (
                1 << packing.width - 1
            )
            found.append(number)
            rest = (rest - number) >> packing.width
    return found


@dataclass
class Heard:
    """What a coordinator decrypted of a party's uploads: residues by iteration, of gradients and of the
    pairs' products."""

    gradients: list[list[int]]
    curvatures: list[list[int]]


def followed(
    start: Floats,
    gradients: Sequence[Floats],
    curvatures: Sequence[Floats],
    coefficients: Sequence[Floats],
    offered: Sequence[tuple[int, bool]],
    learning: DescentSettings,
) -> Floats:
    """A party's weights at the end, by the coefficients that the coordinator sent and gradients that it read.

    start: first weights, as the coordinator takes them to be.
    curvatures: v of each pair.
    offered: iterations of the pairs, and whether they were kept.
    """
    weights, pairs = start.copy(), OwnPairs(learning.memory, len(start))
    means, offers, number = IterateMeans(learning.curvature_every, len(start)), dict(offered), 0
    for iteration, (gradient, own) in enumerate(zip(gradients, coefficients, strict=True), 1):
        weights = weights - pairs.basis(gradient).T @ own
        step = means.add(weights)
        if iteration in offers:
            if offers[iteration] and step is not None:
                pairs.keep(step, curvatures[number])
            number += 1
    return weights


def alike(one: Floats, two: Floats) -> float:
    """The squared cosine of two vectors; 0 where one is no vector."""
    sizes = float(np.linalg.norm(one)) * float(np.linalg.norm(two))
    return float(one @ two / sizes) ** 2 if np.isfinite(sizes) and sizes else 0.0


def distance_from_uniform(residues: Sequence[int], n: int) -> float:
    """Kolmogorov's distance of residues from the uniform distribution on 0 .. n - 1."""
    shares = np.sort([int(residue) / n for residue in residues])
    places = np.arange(1, len(shares) + 1) / len(shares)
    return float(max(np.max(places - shares), np.max(shares - places + 1 / len(shares))))


@cache
def _trained() -> tuple[Trace, Kinds]:
    own = make(ROWS, ROWS, COLUMNS)
    random = np.random.default_rng(5)
    starts = [random.uniform(-0.05, 0.05, COLUMNS + 1), random.uniform(-0.05, 0.05, COLUMNS)]
    parties = [Party(own.guest, starts[0]), Party(own.host, starts[1])]
    numbers = kinds(2, LEARNING.batch, LEARNING.batch)
    return train(parties, own.labels, LEARNING, partition(ROWS, LEARNING.batch, 0), numbers=numbers), numbers


@cache
def _tools(secret: bytes) -> tuple[Encryptor, Masks]:
    public = key_of(512).public
    return Encryptor(public, secret), Masks(public, secret)


def _decrypted(
    secret: bytes, place: RandomnessContext, values: Sequence[int], kind: FixedPoint, masked: bool
) -> list[int]:
    """What the coordinator decrypts of a party's upload."""
    private, (encryptor, masks) = key_of(512), _tools(secret)
    upload = encryptor.encrypt(Packing(private.public, kind).pack(values), place)
    return private.decrypt(encryptor.rerandomise(masks.mask(upload, place)[0], place) if masked else upload)


@cache
def _heard(masked: bool, run: str = "1") -> list[Heard]:
    """By party, what the coordinator decrypted. run: another has other masks."""
    (trace, numbers), found = _trained(), []
    for party, secret in enumerate(SECRETS):
        gradients = [
            _decrypted(
                secret,
                RandomnessContext("f", run, str(party), at, "gradient"),
                own.tolist(),
                numbers.gradients,
                masked,
            )
            for at, own in enumerate(trace.gradients[party])
        ]
        vectors = [numbers.curvature.encode(own * 4 * LEARNING.batch) for own in trace.curvatures[party]]
        curvatures = [
            _decrypted(
                secret,
                RandomnessContext("f", run, str(party), at, "curvature"),
                own.tolist(),
                numbers.curvature,
                masked,
            )
            for at, own in enumerate(vectors)
        ]
        found.append(Heard(gradients, curvatures))
    return found


def _model(masked: bool, known_start: bool, run: str = "1") -> Floats:
    """The parties' weights at the end, as the coordinator finds them."""
    (trace, numbers), key = _trained(), key_of(512).public
    found = []
    for party, heard in enumerate(_heard(masked, run)):
        columns = len(trace.weights[party][0])

        def vectors(residues: list[list[int]], kind: FixedPoint, columns: int = columns) -> list[Floats]:
            packing = Packing(key, kind)
            read = [slots_of(one, columns, kind, packing, int(key.n)) for one in residues]
            return [kind.decode(np.array(one, dtype=object)) / (4 * LEARNING.batch) for one in read]

        gradients = vectors(heard.gradients, numbers.gradients)
        curvatures = vectors(heard.curvatures, numbers.curvature)
        start = trace.weights[party][0] if known_start else np.zeros(columns)
        found.append(followed(start, gradients, curvatures, trace.coefficients, trace.pairs, LEARNING))
    return np.concatenate(found)


def the_model(folder: Path) -> Iterator[Attack]:
    """The coordinator adds up the steps that it knows from gradients and its own coefficients."""
    trace, _ = _trained()
    truth = np.concatenate([own[-1] for own in trace.weights])
    figure, protection = "squared cosine with the model", "mask_gradients"
    for known, name in (
        (True, "steps added up, first weights known"),
        (False, "steps added up, first weights secret"),
    ):
        plain = alike(_model(False, known), truth)
        # One run's masks lead to one direction of all: it may be near the model's by chance.
        protected = float(np.mean([alike(_model(True, known, str(run)), truth) for run in range(RUNS)]))
        yield Attack(name, "coordinator", figure, plain, protection, protected, chance=1 / len(truth))


def what_is_decrypted(folder: Path) -> Iterator[Attack]:
    """Whether what the coordinator decrypts is like random numbers."""
    n = int(key_of(512).public.n)
    plain, protected = (
        distance_from_uniform(
            [one for heard in _heard(masked) for vector in heard.gradients for one in vector], n
        )
        for masked in (False, True)
    )
    count = sum(len(vector) for heard in _heard(True) for vector in heard.gradients)
    # One sample of random numbers in a thousand is farther away.
    bound = float(kstwobign.isf(1e-3)) / count**0.5
    figure = "Kolmogorov's distance from uniform"
    yield Attack(
        "what is decrypted of a gradient", "coordinator", figure, plain, "mask_gradients", protected, bound
    )


def lengths_of_steps(folder: Path) -> Iterator[Attack]:
    """Inner products are what the coordinator works with: they are lengths and angles of the parties' vectors
    together."""
    trace, _ = _trained()
    gradients = [np.concatenate(own) for own in zip(*_float_gradients(trace), strict=True)]
    weights = [np.concatenate(own) for own in zip(*trace.weights, strict=True)]
    truth = np.array([np.linalg.norm(after - before) for before, after in itertools.pairwise(weights)])
    # Of the vectors that sums are told of, it knows the Gram matrix and, with its own coefficients, the
    # step's length.
    pairs, kept = OwnPairs(LEARNING.memory, len(weights[0])), dict(trace.pairs)
    steps, curvatures = (
        [np.concatenate(own) for own in zip(*both, strict=True)] for both in (trace.steps, trace.curvatures)
    )
    found, number = [], 0
    for iteration, (gradient, own) in enumerate(zip(gradients, trace.coefficients, strict=True), 1):
        basis = pairs.basis(gradient)
        gram = basis @ basis.T
        found.append(float(np.sqrt(own @ gram @ own)))
        if iteration in kept:
            if kept[iteration]:
                pairs.keep(steps[number], curvatures[number])
            number += 1
    figure = "correlation with the true lengths"
    yield Attack(
        "lengths of the steps", "coordinator", figure, float(np.corrcoef(found, truth)[0, 1]), "none", None
    )


def _float_gradients(trace: Trace) -> list[list[Floats]]:
    numbers = _trained()[1]
    found = []
    for own, weights in zip(trace.gradients, trace.weights, strict=True):
        found.append([numbers.gradients.decode(one[: len(weights[0])]) / (4 * LEARNING.batch) for one in own])
    return found


def uploads_of_residuals(folder: Path) -> Iterator[Attack]:
    """A host packs the residuals that it was told encrypted, and uploads them as its gradient, which is
    opened for it."""
    private = key_of(ORACLE_BITS)
    key, numbers = private.public, kinds(2, ORACLE_BATCH, ORACLE_BATCH)
    random = np.random.default_rng(0)
    labels = random.choice((-1, 1), ORACLE_BATCH)
    outputs = numbers.inner_products.encode(random.normal(0, 0.5, ORACLE_BATCH))
    residuals = (outputs - 2 * labels * 2**numbers.labels.fraction_bits).tolist()
    told = Encryptor(key, GUEST_SECRET).encrypt(
        residuals, RandomnessContext("f", "1", "guest", 0, "residuals")
    )
    packing = Packing(key, numbers.gradients)
    allowed = packing.plaintexts(ORACLE_COLUMNS)

    def found(uploads: int | None) -> float:
        packed = packing.pack_ciphertexts(told)[:uploads]
        count = min(ORACLE_BATCH, len(packed) * packing.slots)
        read = slots_of(private.decrypt(packed), count, numbers.gradients, packing, int(key.n))
        return float(np.sum(np.sign(-np.array(read, float)) == labels[:count]) / ORACLE_BATCH)

    name = "residuals uploaded as a gradient"
    by = "a host that cheats"
    figure = f"share of {ORACLE_BATCH} labels read in a round"
    yield Attack(
        name, by, figure, found(None), "one decryption a party and round", found(allowed), chance=0.0
    )
