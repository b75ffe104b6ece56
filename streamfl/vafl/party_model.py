"""A party's model in one partition: its parameters, its optimiser, and the gradients that wait for the next step.

VAFL, Algorithm 1, party m: theta_m <- theta_m - eta_m (J_m' g + grad r(theta_m)).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.changelog import ChangedParts, changed_chunks, restore_chunk
from streamfl.changelog_checks import Amount, check_within
from streamfl.learning.optimisers import OptimiserName, finite_step, optimiser_named
from streamfl.records.fields import LARGEST_NUMBER
from streamfl.role import PeerError
from streamfl.vafl.in_flight_embeddings import InFlightEmbedding
from streamfl.vafl.messages import bounded_array
from streamfl.vafl.networks import Differentiable
from streamfl.vafl.party_life import PartyLife
from streamfl.vafl.party_noise import PartyNoise
from streamfl.wire import Count, Name, decode_array

__all__ = ["AnsweredEntity", "PartyModel", "PartySteps"]


@dataclass(frozen=True)
class PartySteps:
    """How a party learns.

    optimiser: its name.
    learning_rate: eta_m.
    batch_size: gradients that make a step.
    in_flight: entities that may be on their way, from their embedding to the step on their gradient, before the next has to wait;
        None: any number.
    regularisation: lambda of lambda |theta|^2 / 2.
    unscaled_rate: eta_m of a partition that goes on with inputs as they come, though others are standardised; None: the same.
    fewer: whether fewer gradients make a step where fewer entities are under way.
    """

    optimiser: OptimiserName = "adagrad"
    learning_rate: float = 0.03
    batch_size: int = 16
    in_flight: int | None = None
    regularisation: float = 0.0
    unscaled_rate: float | None = None
    fewer: bool = False


class AnsweredEntity(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """A gradient that waits for its step.

    entity: whose it is.
    sequence: number of the embedding that it answers.
    features: what that embedding was made from, raw numbers.
    gradient: d l / d h_nm, raw numbers.
    noise: sigma that its cost was counted with; its step has no less.
    """

    entity: Name
    sequence: Count
    features: bytes
    gradient: bytes
    noise: Amount = 0.0


class PartyModel:
    """h_m of one partition, and its next step.

    function: h_m.
    inputs: numbers that it takes.
    embedding_size: numbers that it gives.
    steps: how it learns.
    noise: of the party's embeddings and steps; None: both go without.
    parameters: to begin with, (size,).
    life: counts the steps.
    parts: where the gradients are remembered, under ``answered/number``.
    """

    def __init__(
        self,
        function: Differentiable,
        inputs: int,
        embedding_size: int,
        steps: PartySteps,
        noise: PartyNoise | None,
        parameters: NDArray[Any],
        life: PartyLife,
        parts: ChangedParts,
    ) -> None:
        self._function = function
        self._inputs = inputs
        self._embedding_size = embedding_size
        self._steps = steps
        self._noise = noise
        self._parameters = parameters
        self._life = life
        self._parts = parts
        self._optimiser = optimiser_named(steps.optimiser, steps.learning_rate, function.size)
        self._wire_dtype = np.dtype(function.dtype).newbyteorder("<")
        self._gradient_noise = 0.0 if noise is None else noise.step_noise
        self._answered: list[AnsweredEntity] = []
        self._moved = False

    def go_on_unscaled(self) -> None:
        """The partition began before inputs were standardised."""
        self._optimiser.learning_rate = self._steps.unscaled_rate or self._steps.learning_rate

    # ---- embeddings

    @property
    def parameters(self) -> NDArray[Any]:
        """theta_m, (size,): a copy."""
        return self._parameters.copy()

    def embed(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """h_m of ``inputs``, (n, inputs), at the present parameters and without noise: (n, embedding size)."""
        outputs: NDArray[Any] = self._function.forward(self._parameters, inputs).outputs
        return outputs

    def embeddings(self, showing: Sequence[tuple[str, InFlightEmbedding]]) -> NDArray[Any]:
        """The embeddings of entities as others see them, (n, embedding size)."""
        inputs = self._rows([shown.features for _, shown in showing], self._inputs)
        with np.errstate(over="ignore", invalid="ignore"):
            if self._noise is None:
                return self.embed(inputs)
            # One by one: rounding may differ between a row alone and a row among others, and work that is done again falls into
            # other batches.
            return np.array([self._noisy(self._noise, own, *one) for own, one in zip(inputs, showing, strict=True)])

    def _noisy(self, noise: PartyNoise, inputs: NDArray[Any], entity: str, shown: InFlightEmbedding) -> NDArray[np.float64]:
        """The embedding of one entity with its noise, (embedding size,). inputs: (inputs,)."""
        inside = noise.inside(self._function.noise_units, [shown.sequence])
        (values,) = self._function.forward(self._parameters, inputs[np.newaxis], inside).outputs
        return noise.onto_embedding(values, shown.sequence, entity, shown.features)

    # ---- gradients

    @property
    def answered(self) -> Sequence[AnsweredEntity]:
        """The gradients that wait for the next step, in order."""
        return tuple(self._answered)

    @property
    def gathered(self) -> int:
        """How many gradients wait for the next step."""
        return len(self._answered)

    def gathered_of(self, entity: str) -> int:
        """How many of these are of one entity."""
        return sum(one.entity == entity for one in self._answered)

    @property
    def wanted(self) -> int:
        """How many make the next step: as many as were under way at once since the last, ``batch_size`` at most.

        Gradients of entities that were shown by the same parameters belong into one step, which goes as far as one of them would.
        Where labels come at once nothing else is under way, and to wait for more would only delay what can be learnt.
        """
        most = self._steps.batch_size
        return min(most, 1 + self._life.under_way) if self._steps.fewer else most

    def gather(self, entity: str, shown: InFlightEmbedding, gradient: bytes, later: Callable[[int, int], int]) -> bool:
        """A gradient waits for the next step. Returns whether there are enough for it.

        later: how many entities are under way that were shown after a sequence number, up to a bound. Those shown before may never
        be answered.
        """
        if not self._gradient_noise:
            self._life.learn_bare()
        answered = AnsweredEntity(entity, shown.sequence, shown.features, gradient, self._gradient_noise)
        self._parts.remember(b"answered/%d" % len(self._answered), answered)
        self._answered.append(answered)
        if self._steps.fewer and self.wanted < self._steps.batch_size:
            self._life.under_way = max(self._life.under_way, later(shown.sequence, self._steps.batch_size - 1))
        return len(self._answered) >= self.wanted

    def step(self) -> bool:
        """Step on all gradients that wait. Returns whether the step was taken: none is that makes a parameter infinite."""
        answered, self._answered = self._answered, []
        for index in range(len(answered)):
            self._parts.forget(b"answered/%d" % index)
        learnt = self._digest(answered)
        # The noise of this step is drawn by this digest, which names these gradients.
        self._life.learn_from(learnt)
        with np.errstate(over="ignore", invalid="ignore"):
            gradient = self._total(answered) / len(answered) + self._steps.regularisation * self._parameters
        taken = finite_step(self._optimiser, self._parameters, gradient, self._life.steps + 1)
        self._life.tried_step(taken)
        self._moved = True
        return taken

    def _digest(self, answered: Sequence[AnsweredEntity]) -> bytes:
        if self._noise is None:
            return self._life.learnt
        steps = self._steps
        how = (steps.optimiser, steps.learning_rate, steps.regularisation, *self._noise.of_steps)
        content = msgspec.msgpack.encode((self._life.learnt, answered, how))
        return hashlib.blake2b(content, digest_size=32).digest()

    def _total(self, answered: Sequence[AnsweredEntity]) -> NDArray[Any]:
        """The sum of J' g, (size,), with the noise that goes onto it."""
        inputs = self._rows([one.features for one in answered], self._inputs)
        gradients = self._rows([one.gradient for one in answered], self._embedding_size)
        function, noise = self._function, self._noise
        inside = None if noise is None else noise.inside(function.noise_units, [one.sequence for one in answered])
        done = function.forward(self._parameters, inputs, inside)
        bound = None if noise is None else noise.bound
        if noise is None or bound is None:
            return function.backward(self._parameters, done, gradients)
        total = function.backward_each(self._parameters, done, gradients, bound)
        return noise.onto_step(total, max(noise.step_noise, *[one.noise for one in answered]))

    def _rows(self, rows: Sequence[bytes], width: int) -> NDArray[Any]:
        """Rows that were checked when they came, (rows, width)."""
        numbers = np.frombuffer(b"".join(rows), self._wire_dtype)
        return numbers.astype(self._function.dtype, copy=False).reshape(len(rows), width)

    # ---- state

    def changed_state(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of the parameters and the optimiser's arrays, if a step was tried since the last call."""
        if self._moved:
            self._moved = False
            yield from changed_chunks({"parameters": self._parameters, **self._optimiser.arrays})

    def begin_with(self, parameters: NDArray[Any]) -> None:
        """Nobody has learnt anything in this partition, and whoever was here before began with these parameters."""
        self._parameters[:] = parameters

    def restore_array(self, key: bytes, value: bytes) -> None:
        restore_chunk({"parameters": self._parameters, **self._optimiser.arrays}, key, value, self._optimiser.check)

    def restore_answered(self, name: bytes, value: bytes) -> None:
        answered = msgspec.msgpack.decode(value, type=AnsweredEntity)
        self.check_features(answered.features)
        bounded_array(answered.gradient, self._function.dtype, self._embedding_size, "gradient")
        if int(name) != len(self._answered):
            raise PeerError("malformed", f"{b'answered/' + name!r} is remembered after {len(self._answered)} others")
        self._answered.append(answered)

    def check_features(self, content: bytes) -> None:
        """PeerError for what cannot be the features of a sample."""
        features = decode_array(content, self._function.dtype, (self._inputs,), "features")
        check_within(np.abs(features, dtype=np.float64).sum(), 0.0, 1.001 * LARGEST_NUMBER, "features")
