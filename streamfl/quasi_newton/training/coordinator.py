"""The coordinator has the private key and no data. It decrypts masked gradients and sums of inner products,
and decides the step.

It is a decryption oracle. So in each round it decrypts one upload of each party, with as many numbers as the
party announced, and one vector of sums. It refuses and counts anything else.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from streamfl.contract.role import BadRecord, Measurement
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.quasi_newton.config import MOST_COLUMNS, QuasiNewtonSettings
from streamfl.quasi_newton.encryption.bignum import to_bytes
from streamfl.quasi_newton.encryption.key_file import OTHER_KEY
from streamfl.quasi_newton.encryption.keys import digest_of
from streamfl.quasi_newton.encryption.randomness import RandomnessContext
from streamfl.quasi_newton.encryption.scheme import Scheme, scheme_of
from streamfl.quasi_newton.learning.descent import Descent, DescentState
from streamfl.quasi_newton.learning.own_columns import PRODUCTS
from streamfl.quasi_newton.learning.taylor import loss_from_products
from streamfl.quasi_newton.messages import (
    ANOTHER,
    COORDINATOR_NAME,
    Begin,
    Joined,
    Message,
    Opened,
    Ready,
    StepDecision,
    content_of,
    read_content,
    records_of,
)
from streamfl.quasi_newton.metrics import CoordinatorMetrics, MemberCounts
from streamfl.quasi_newton.state import DESCENT, RUN
from streamfl.quasi_newton.training.background_tasks import Opening, opened, request
from streamfl.quasi_newton.training.coordinator_run import (
    ALIGNING,
    FAILED,
    ROUND,
    TRAINED,
    CoordinatorRun,
)
from streamfl.quasi_newton.training.given import CoordinatorGiven
from streamfl.quasi_newton.training.traffic import TrafficCounter
from streamfl.roles.partitioned_role import Outbox
from streamfl.roles.task_role import PartsTask
from streamfl.state.changelog import ChangedParts

__all__ = ["CoordinatorTask"]

# Sent in place of the loss. If the coordinator reported the loss, the guest could get any other number
# decrypted in it. No party needs the loss.
UNTOLD = 0.0
NOWHERE = RandomnessContext("", "", "", 0, "")


class CoordinatorTask(PartsTask):
    """The state machine of the coordinator's partition."""

    def __init__(
        self, settings: QuasiNewtonSettings, given: CoordinatorGiven, outbox: Outbox[MemberCounts]
    ) -> None:
        self.settings = settings
        self.given = given
        self.outbox = outbox
        self.traffic = TrafficCounter()
        self.parts = ChangedParts("a coordinator")
        self._remember_run = self.parts.single(RUN, CoordinatorRun, self._restore_run)
        self._remember_descent = self.parts.single(
            DESCENT, DescentState, lambda state: self.descent.restore(state)
        )
        self.run = CoordinatorRun()
        self.descent = Descent(settings.learning.descent)

    @property
    def wake_at(self) -> float | None:
        return None

    @property
    def owed(self) -> bool:
        return self.run.phase in (ALIGNING, ROUND)

    @property
    def owing(self) -> Sequence[str]:
        told = self.run.joined if self.run.phase == ALIGNING else self.run.opened
        away = [name for name in self.settings.federation.parties if name not in told]
        return away or [self.settings.federation.guest_party]  # for the sums

    @property
    def trouble(self) -> str | None:
        for party, key in self.run.ready.items():
            if key != self._key and not self.owed:
                return (
                    f"{party!r} is ready for a training under {_told(key)}, and this coordinator has "
                    f"{_told(self._key)}: encryption.key_fingerprint and key_bits have to be the same at "
                    "every member"
                )
        return self.run.failure or None

    @property
    def awaited(self) -> str | None:
        parties = self.settings.federation.parties
        if self.run.number or len(self.run.ready) == len(parties):
            return None
        away = ", ".join(name for name in parties if name not in self.run.ready)
        told = f"{len(self.run.ready)} of {len(parties)} parties are ready for the first training"
        return f"{told}: waits for {away}"

    @property
    def epoch_loss(self) -> float:
        """Mean loss over the batches of the latest epoch; NaN before the first epoch of a run."""
        return float("nan") if self.descent.last_loss is None else self.descent.last_loss

    def set_back(self, now: float) -> None:
        """Does nothing: the coordinator remembers no times."""

    def pass_time(self, now: float) -> None:
        """Nothing falls due by time. But after a restart the key may be a different one."""
        self._look_at_key()
        self._begin_if_all_are_ready()

    def measure(self) -> Iterator[Measurement]:
        """Metrics of the phase, the loss, the pairs, and the traffic of an iteration."""
        run, descent = self.run, self.descent
        yield CoordinatorMetrics.training(run.number)
        yield CoordinatorMetrics.phase(run.phase)
        yield CoordinatorMetrics.iteration(run.round // 2)
        yield CoordinatorMetrics.epoch(descent.epochs)
        yield CoordinatorMetrics.loss(self.epoch_loss)
        yield CoordinatorMetrics.pairs(descent.pairs)
        yield CoordinatorMetrics.skipped_pairs(descent.skipped)
        yield from self.traffic.measure()

    def take(self, channel: str, message: Any, now: float) -> None:
        assert isinstance(message, Message)
        party = channel.partition("/")[2]
        if message.fingerprint != self.settings.fingerprint:
            raise BadRecord("configuration", ANOTHER)
        if message.sender != party:
            raise BadRecord("forged", f"{message.sender!r} speaks where {party!r} is heard")
        self._look_at_key()
        if message.kind == "ready":
            self._take_ready(party, message)
        elif message.kind == "joined":
            self._take_joined(party, message)
        elif message.kind == "failed":
            self._take_failed(party, message)
        elif message.kind == "gradient":
            self._take_gradient(party, message)
        elif message.kind == "sums":
            self._take_sums(party, message)
        else:
            raise BadRecord("malformed", f"{message.kind!r} is not a message of a party to the coordinator")

    # ---- before the rounds

    def _take_ready(self, party: str, message: Message) -> None:
        run = self.run
        ready: Ready = read_content(message.content, Ready)
        if message.run < run.number or self.owed or run.ready.get(party) == ready.key:
            self._repeated()
            return
        if message.run > run.number:
            raise BadRecord("implausible", f"ready after run {message.run}, the latest is {run.number}")
        run.ready[party] = ready.key
        self._remember()
        self._begin_if_all_are_ready()

    def _begin_if_all_are_ready(self) -> None:
        """Begin a run once every party is ready under this coordinator's key. No message is lost while
        parties change their key."""
        run, settings = self.run, self.settings
        parties = settings.federation.parties
        if self.owed or [run.ready.get(party) for party in parties] != [self._key] * len(parties):
            return
        self.run = CoordinatorRun(run.number + 1, ALIGNING, key=self._key)
        self.descent = Descent(settings.learning.descent)
        for name in settings.federation.parties:
            self._say(name, "begin", content_of(Begin(self._modulus)))
        self._remember()

    def _look_at_key(self) -> None:
        """Fail a run that began under another key: it cannot go on after a restart with this one."""
        if self.owed and self.run.key != self._key:
            self._fail(OTHER_KEY)

    def _take_joined(self, party: str, message: Message) -> None:
        run = self.run
        if message.run < run.number or (message.run == run.number and run.phase == FAILED):
            self._repeated()
            return
        joined: Joined = read_content(message.content, Joined)
        if message.run == run.number and party in run.joined:
            told = message.alignment, joined.batches, joined.columns
            if not self.owed:
                # Messages in its name, of another run or a stranger's, may have led the training to its end
                # without this party. A party that has come to the end as well passes over this.
                self._say(party, "failed", b"")
            elif told == (run.alignment, run.batches, run.joined[party]):
                self._repeated()
            else:
                self._fail(f"{party!r} has joined it twice, and not alike")
            return
        # Each party has its own topic, so another party's first upload may be read before this message.
        if message.run > run.number or run.phase not in (ALIGNING, ROUND):
            raise BadRecord("implausible", f"{party!r} has rows for run {message.run}: nothing led to it")
        if not (0 < joined.columns <= MOST_COLUMNS and 0 < joined.batches <= self.settings.most_batches):
            raise BadRecord(
                "implausible", f"{joined.columns} columns and {joined.batches} batches cannot be learnt from"
            )
        if run.joined and (message.alignment, joined.batches) != (run.alignment, run.batches):
            raise BadRecord("alignment", f"{party!r} has other entities in common, or other batches")
        run.alignment, run.batches = message.alignment, joined.batches
        run.joined[party] = joined.columns
        # No message begins the rounds: each party's first upload follows this message.
        self._remember()

    def _take_failed(self, party: str, message: Message) -> None:
        if message.run > self.run.number:
            raise BadRecord("implausible", f"run {message.run} has failed: nothing led to it")
        if message.run == self.run.number and self.owed:
            # The party itself too: without keys a stranger may have spoken in its name.
            self._fail(f"{party!r} could not continue, see its log")
        elif message.run == self.run.number and self.run.phase == TRAINED:
            # It was led to its end as above. Parties that are still in it wait for this one.
            self._say_all("failed", b"")
        else:
            self._repeated()

    def _fail(self, text: str) -> None:
        self.run.phase = FAILED
        self.outbox.counts.failed_trainings += 1
        self.run.failure = f"training {self.run.number} has ended: {text}"
        self.outbox.notices.say("failed", self.run.failure)
        self._say_all("failed", b"")
        self._remember()

    # ---- rounds

    def _take_gradient(self, party: str, message: Message) -> None:
        run, settings = self.run, self.settings
        if (message.run, message.round) < (run.number, run.round) or run.phase > ROUND:
            self._repeated()
            return
        self._check_round(party, message)
        digest = hashlib.blake2b(message.content, digest_size=32).digest()
        if party in run.opened:
            if run.opened[party] != digest:
                self.outbox.counts.refused_decryptions += 1
                raise BadRecord(
                    "repeated_decryption", f"{party!r} has had its upload of round {run.round} opened"
                )
            self._repeated()
            return
        kind = settings.kinds.curvature if run.round % 2 else settings.kinds.gradients
        # The guest's product has the labels' column last, but not in a round for curvature.
        count = run.joined[party] + (party == settings.federation.guest_party and run.round % 2 == 0)
        self._scheme.check(message.content, self._scheme.units(count, kind), kind)
        self._open(message.content, lambda residues: self._tell_opened(party, digest, residues))

    def _tell_opened(self, party: str, digest: bytes, residues: bytes) -> None:
        self.run.phase = ROUND
        self.run.opened[party] = digest
        self._say(party, "opened", content_of(Opened(residues)))
        self._remember()

    def _take_sums(self, party: str, message: Message) -> None:
        run, settings = self.run, self.settings
        if (message.run, message.round) < (run.number, run.round) or run.phase > ROUND:
            self._repeated()
            return
        self._check_round(party, message)
        if party != settings.federation.guest_party or len(run.opened) < len(settings.federation.parties):
            raise BadRecord("implausible", f"sums of {party!r} before all gradients of round {run.round}")
        pairs = self.descent.pairs
        count = 4 * pairs + 4 if run.round % 2 else 2 * pairs + 2
        self._scheme.check(message.content, self._scheme.units(count, settings.products), settings.products)
        self._open(message.content, lambda residues: self._decide(residues, count))

    def _decide(self, residues: bytes, count: int) -> None:
        run, learning = self.run, self.settings.learning
        try:
            numbers = self._scheme.opened(residues, count, self.settings.products, NOWHERE, b"")
            products = PRODUCTS.decode(np.array(numbers, dtype=object))
            check = self.descent.check_pair if run.round % 2 else self.descent.check_step
            check(products, len(self.settings.federation.parties) * self.settings.kinds.inner_products.bound)
        except BadRecord as error:
            # These sums are decrypted. If the coordinator waited for others instead, the guest could have
            # vector after vector decrypted.
            self.outbox.counts.implausible_openings += 1
            self._fail(f"the sums of {self.settings.federation.guest_party!r} are none: {error.text}")
            return
        if run.round % 2:
            offered = products.reshape(2, -1)
            self._end_iteration(b"", kept=self.descent.offer(offered[0], offered[1]))
            return
        run.loss = loss_from_products(float(products[-1]))
        coefficients = encode_array(self.descent.step(products[:-1]))
        taken = run.round // 2 + 1
        due = taken % learning.curvature_every == 0 and taken >= 2 * learning.curvature_every
        if due and not self.descent.frozen:
            self._say_all("step", content_of(StepDecision(coefficients, UNTOLD, True, False, False, False)))
            run.round, run.opened = run.round + 1, {}
            self._remember()
        else:
            self._end_iteration(coefficients, kept=False)

    def _end_iteration(self, coefficients: bytes, *, kept: bool) -> None:
        run = self.run
        iteration = run.round // 2
        run.losses.append(run.loss)
        self.outbox.counts.iterations += 1
        epoch_ends, over = (iteration + 1) % run.batches == 0, False
        if epoch_ends:
            over = self.descent.end_epoch(float(np.mean(run.losses)), run.batches)
            run.losses = []
        self._say_all("step", content_of(StepDecision(coefficients, UNTOLD, False, kept, epoch_ends, over)))
        run.round, run.opened = 2 * (iteration + 1), {}
        if over:
            run.phase = TRAINED
            self.outbox.counts.trainings += 1
        self._remember()

    def _check_round(self, party: str, message: Message) -> None:
        run = self.run
        if (message.run, message.round) != (run.number, run.round) or party not in run.joined:
            raise BadRecord(
                "implausible",
                f"{message.kind} of run {message.run}, round {message.round}: nothing led to it",
            )
        if message.alignment != run.alignment:
            raise BadRecord("alignment", "other entities are in common there")

    def _open(self, content: bytes, then: Any) -> None:
        self.outbox.counts.decryptions += 1
        key = self.given.private_key
        p, q = (
            (b"", b"")
            if key is None
            else (to_bytes(prime, key.public.bits // 16) for prime in (key.p, key.q))
        )
        self.outbox.ask(opened, request(Opening(p, q, content)), then)

    # ---- what is said

    @property
    def _modulus(self) -> bytes:
        return b"" if self.given.private_key is None else self.given.private_key.public.to_bytes()

    @functools.cached_property
    def _key(self) -> bytes:
        return digest_of(self._modulus)

    @property
    def _scheme(self) -> Scheme:
        return scheme_of(self._modulus, b"")

    def _say(self, party: str, kind: str, content: bytes) -> None:
        run, settings = self.run, self.settings
        message = Message(
            VERSION,
            settings.fingerprint,
            COORDINATOR_NAME,
            run.number,
            run.round,
            kind,
            run.alignment,
            content,
        )
        size = self.outbox.send(f"decisions/{party}", records_of(self.given.codec, message))
        if kind in ("opened", "step"):
            self.traffic.add(run.number, run.round // 2, 0, size)

    def _say_all(self, kind: str, content: bytes) -> None:
        for party in self.settings.federation.parties:
            self._say(party, kind, content)

    def _repeated(self) -> None:
        self.outbox.counts.repeated_messages += 1

    def _remember(self) -> None:
        self._remember_run(self.run)
        self._remember_descent(self.descent.state)

    def _restore_run(self, run: CoordinatorRun) -> None:
        self.run = run


def _told(key: bytes) -> str:
    """A key in the terms of the settings: fingerprint and bits."""
    return f"the key {key[:-2].hex()} of {int.from_bytes(key[-2:], 'big')} bits"
