"""A party's model in one partition: its parameters, its optimiser, and the gradients that wait for the next
step.

VAFL, Algorithm 1, party m: theta_m <- theta_m - eta_m (J_m' g + grad r(theta_m)).

Where the number of gradients in a step is not fixed (fewer_at_once), g is divided by tau - 1 if its
embedding is tau > 2 steps old. Hundreds of gradients at the same old parameters may come at once, and each
would move on as if the party still stood there. Zhang, Gupta, Lian and Liu (Staleness-aware async-SGD, IJCAI
2016) divide by tau.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import Amount, check_number, check_within
from streamfl.encoding.wire import Count, Name, decode_array, encode_array
from streamfl.learning.optimisers import finite_step, optimiser_named
from streamfl.records.fields import LARGEST_NUMBER
from streamfl.state.changelog import ChangedParts, changed_chunks, restore_chunk
from streamfl.vafl.config import STALE_STEPS, VaflSettings
from streamfl.vafl.functions.networks import Differentiable
from streamfl.vafl.messages import bounded_array
from streamfl.vafl.party.in_flight_embeddings import InFlightEmbedding
from streamfl.vafl.party.life import PartyLife
from streamfl.vafl.party.noise import PartyNoise
from streamfl.vafl.state import ANSWERED, ARRAY

__all__ = ["PartyModel", "PendingGradient"]


class PendingGradient(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """A gradient that waits for its step.

    entity: the entity's name.
    sequence: number of the embedding that the gradient answers.
    features: the features of that embedding, raw numbers.
    gradient: d l / d h_nm, raw numbers, divided as its age asks for.
    noise: sigma that its cost was counted with; the step's noise is at least this.
    """

    entity: Name
    sequence: Count
    features: bytes
    gradient: bytes
    noise: Amount = 0.0


class PartyModel:
    """h_m in one partition, and the gradients for its next step.

    settings: the party's.
    function: h_m.
    noise: of the party's embeddings and steps; None: both go without.
    parameters: to begin with, (size,).
    life: counts the steps.
    parts: where the gradients are remembered.
    """

    def __init__(
        self,
        settings: VaflSettings,
        function: Differentiable,
        noise: PartyNoise | None,
        parameters: NDArray[Any],
        life: PartyLife,
        parts: ChangedParts,
    ) -> None:
        self._settings = settings
        self._function = function
        self._inputs = settings.inputs
        self._embedding_size = settings.federation.embedding_size
        self._batch_size, self._fewer = settings.batch_size, settings.fewer_at_once
        self._learning_rate = settings.party_rate(settings.standardise)
        self._regularisation = settings.learning.regularisation
        self._noise = noise
        self._parameters = parameters
        self._life = life
        self._remembered = parts.named(ANSWERED, check_number, PendingGradient, self._restore_answered)
        parts.register(ARRAY.prefix, self._restore_array)
        self._optimiser = optimiser_named(settings.optimiser, self._learning_rate, function.size)
        self._wire_dtype = np.dtype(function.dtype).newbyteorder("<")
        self._gradient_noise = 0.0 if noise is None else noise.step_noise
        self._pending: list[PendingGradient] = []
        self._moved = False

    def go_on_unscaled(self) -> None:
        """Take the learning rate for raw inputs: the partition began before inputs were standardised."""
        self._optimiser.learning_rate = self._settings.party_rate(standardised=False)

    # ---- embeddings

    @property
    def parameters(self) -> NDArray[Any]:
        """theta_m, (size,): a copy."""
        return self._parameters.copy()

    def embed(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """h_m of ``inputs``, (n, inputs), at the present parameters and without noise: (n, embedding
        size)."""
        outputs: NDArray[Any] = self._function.forward(self._parameters, inputs).outputs
        return outputs

    def embeddings(self, showing: Sequence[tuple[str, InFlightEmbedding]]) -> NDArray[Any]:
        """Embeddings of entities as they are sent, with noise if there is any: (n, embedding size)."""
        inputs = self._rows([shown.features for _, shown in showing], self._inputs)
        with np.errstate(over="ignore", invalid="ignore"):
            if self._noise is None:
                return self.embed(inputs)
            # One by one: rounding may differ between a row alone and a row in a batch, and repeated work may
            # fall into other batches.
            return np.array(
                [self._noisy(self._noise, own, *one) for own, one in zip(inputs, showing, strict=True)]
            )

    def _noisy(
        self, noise: PartyNoise, inputs: NDArray[Any], entity: str, shown: InFlightEmbedding
    ) -> NDArray[np.float64]:
        """The embedding of one entity with its noise, (embedding size,). inputs: (inputs,)."""
        inside = noise.inside(self._function.noise_units, [shown.sequence])
        (values,) = self._function.forward(self._parameters, inputs[np.newaxis], inside).outputs
        return noise.onto_embedding(values, shown.sequence, entity, shown.features)

    # ---- gradients

    @property
    def pending(self) -> Sequence[PendingGradient]:
        """The gradients that wait for the next step, in order."""
        return tuple(self._pending)

    @property
    def gathered(self) -> int:
        """The number of gradients that wait for the next step."""
        return len(self._pending)

    def gathered_of(self, entity: str) -> int:
        """The number of these gradients that are of one entity."""
        return sum(one.entity == entity for one in self._pending)

    @property
    def wanted(self) -> int:
        """Gradients in the next step: the most entities under way at once since the last step, up to
        ``batch_size``.

        Gradients of embeddings by the same parameters belong into one step, which averages them. Where labels
        come at once nothing else is under way, and waiting for more gradients would only delay learning.
        """
        return min(self._batch_size, 1 + self._life.under_way) if self._fewer else self._batch_size

    def gather(
        self, entity: str, shown: InFlightEmbedding, gradient: bytes, later: Callable[[int, int], int]
    ) -> bool:
        """Add a gradient to the next step. Returns whether there are enough for the step.

        later: takes a sequence number and a bound; returns how many entities sent after that number are under
        way, up to the bound. Those sent before it may never be answered.
        """
        if not self._gradient_noise:
            self._life.learn_bare()
        if self._fewer and shown.steps is not None and (age := self._life.steps - shown.steps) > STALE_STEPS:
            gradient = encode_array(np.frombuffer(gradient, self._wire_dtype) / (age - STALE_STEPS + 1))
        answered = PendingGradient(entity, shown.sequence, shown.features, gradient, self._gradient_noise)
        self._remembered.remember(len(self._pending), answered)
        self._pending.append(answered)
        if self._fewer and self.wanted < self._batch_size:
            self._life.under_way = max(self._life.under_way, later(shown.sequence, self._batch_size - 1))
        return len(self._pending) >= self.wanted

    def step(self) -> bool:
        """Step on all gradients that wait. Returns False if the step was refused because a parameter would
        become infinite."""
        answered, self._pending = self._pending, []
        for index in range(len(answered)):
            self._remembered.forget(index)
        learnt = self._digest(answered)
        # The noise of this step is drawn from this digest, which covers these gradients.
        self._life.learn_from(learnt)
        with np.errstate(over="ignore", invalid="ignore"):
            gradient = self._total(answered) / len(answered) + self._regularisation * self._parameters
        taken = finite_step(self._optimiser, self._parameters, gradient, self._life.steps + 1)
        self._life.tried_step(taken)
        self._moved = True
        return taken

    def _digest(self, answered: Sequence[PendingGradient]) -> bytes:
        if self._noise is None:
            return self._life.learnt
        how = (self._settings.optimiser, self._learning_rate, self._regularisation, *self._noise.of_steps)
        content = msgspec.msgpack.encode((self._life.learnt, answered, how))
        return hashlib.blake2b(content, digest_size=32).digest()

    def _total(self, answered: Sequence[PendingGradient]) -> NDArray[Any]:
        """The sum of J' g with its noise, (size,)."""
        inputs = self._rows([one.features for one in answered], self._inputs)
        gradients = self._rows([one.gradient for one in answered], self._embedding_size)
        function, noise = self._function, self._noise
        inside = (
            None if noise is None else noise.inside(function.noise_units, [one.sequence for one in answered])
        )
        done = function.forward(self._parameters, inputs, inside)
        bound = None if noise is None else noise.bound
        if noise is None or bound is None:
            return function.backward(self._parameters, done, gradients)
        total = function.backward_each(self._parameters, done, gradients, bound)
        return noise.onto_step(total, max(noise.step_noise, *[one.noise for one in answered]))

    def _rows(self, rows: Sequence[bytes], width: int) -> NDArray[Any]:
        """Raw numbers, checked when they came, as an array (rows, width)."""
        numbers = np.frombuffer(b"".join(rows), self._wire_dtype)
        return numbers.astype(self._function.dtype, copy=False).reshape(len(rows), width)

    # ---- state

    def changed_state(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of the parameters and the optimiser's arrays, if a step was tried since the last
        call."""
        if self._moved:
            self._moved = False
            yield from changed_chunks({"parameters": self._parameters, **self._optimiser.arrays})

    def begin_with(self, parameters: NDArray[Any]) -> None:
        """Begin with the remembered start's parameters, (size,). No step was taken in this partition."""
        self._parameters[:] = parameters

    def _restore_array(self, name: bytes, value: bytes) -> None:
        arrays = {"parameters": self._parameters, **self._optimiser.arrays}
        restore_chunk(arrays, ARRAY.prefix + name, value, self._optimiser.check)

    def _restore_answered(self, number: int, answered: PendingGradient) -> None:
        self.check_features(answered.features)
        bounded_array(answered.gradient, self._function.dtype, self._embedding_size, "gradient")
        if number != len(self._pending):
            raise BadRecord("malformed", f"gradient {number} is remembered after {len(self._pending)} others")
        self._pending.append(answered)

    def check_features(self, content: bytes) -> None:
        """BadRecord for bytes that cannot be the features of a sample."""
        features = decode_array(content, self._function.dtype, (self._inputs,), "features")
        check_within(np.abs(features, dtype=np.float64).sum(), 0.0, 1.001 * LARGEST_NUMBER, "features")
