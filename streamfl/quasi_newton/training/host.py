"""A host: it has columns and no labels, sends encrypted inner products, and receives encrypted residuals."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.config import QuasiNewtonSettings
from streamfl.quasi_newton.encryption.scheme import numbers_to_bytes
from streamfl.quasi_newton.messages import (
    Aligned,
    Answer,
    Blinded,
    FirstAnswer,
    Message,
    content_of,
    numbers_of,
    read_content,
)
from streamfl.quasi_newton.metrics import MemberCounts
from streamfl.quasi_newton.rows.alignment import POINT_BYTES, check_points, names_at
from streamfl.quasi_newton.rows.learnt_batches import NAME_BYTES
from streamfl.quasi_newton.scoring.host import HostScoring
from streamfl.quasi_newton.scoring.party import ScoringParty
from streamfl.quasi_newton.state import ASKED, ORDER
from streamfl.quasi_newton.training.background_tasks import Encrypting, Kind, aligned, encrypted, request
from streamfl.quasi_newton.training.given import PartyGiven
from streamfl.quasi_newton.training.gradient_upload import ask_for_product, upload_product
from streamfl.quasi_newton.training.training_progress import ALIGNING, DECIDING, FAILED, OUTPUTS
from streamfl.roles.partitioned_role import Outbox
from streamfl.state.value_fragments import ValueFragments

__all__ = ["HostTask"]


class HostTask(ScoringParty):
    """The state machine of a host's partition."""

    def __init__(
        self, settings: QuasiNewtonSettings, given: PartyGiven, outbox: Outbox[MemberCounts]
    ) -> None:
        super().__init__(settings, given, outbox)
        self._guest = settings.federation.guest_party
        self.scoring: HostScoring = HostScoring(self)
        # The guest's points that came before the coordinator began the run, after the run's number.
        self._asked = ValueFragments(self.parts, ASKED, 8 + settings.alignment.limit * POINT_BYTES)
        # The run's number, and names in the order of the points that the guest has.
        self._order = ValueFragments(self.parts, ORDER, 16 + settings.alignment.limit * NAME_BYTES)

    def owing_parties(self) -> Sequence[str]:
        return [self._guest]

    def take_linked(self, channel: str, message: Message) -> None:
        if channel == "questions":
            self.scoring.take(message)
        elif message.kind == "blinded":
            self._take_blinded(message)
        elif message.kind == "aligned":
            self._take_aligned(message)
        elif message.kind == "residuals":
            if self.exchange.is_present(message, OUTPUTS):
                self._take_residuals(message)
        else:
            raise BadRecord("malformed", f"{message.kind!r} is not a message of a guest")

    # ---- alignment

    def _take_blinded(self, message: Message) -> None:
        progress = self.progress
        if message.run < progress.run or (
            message.run == progress.run and (progress.phase != ALIGNING or self._answered)
        ):
            self.exchange.repeated()
            return
        if message.run > progress.run + 1 or message.round:
            raise BadRecord("implausible", f"an alignment for run {message.run} after run {progress.run}")
        points = read_content(self.exchange.unsealed(self._guest, message), Blinded).points
        check_points(points, self.settings.alignment.limit)
        if self._asked.content[:8] == message.run.to_bytes(8, "big"):
            # One question a run: with any number of questions the guest could try every possible name.
            self.exchange.repeated()
            return
        if message.run == progress.run:
            self._answer(points)
        else:
            self._asked.write(message.run.to_bytes(8, "big") + points)

    def align(self) -> None:
        asked = self._asked.content
        self._asked.clear()
        if asked[:8] == self.progress.run.to_bytes(8, "big"):
            self._answer(asked[8:], early=True)

    def _answer(self, points: bytes, *, early: bool = False) -> None:
        """early: whether the points came in an earlier message than the present one."""
        settings = self.settings
        session = self.exchange.session(settings.required_party())
        content = self.alignments.request(self._guest, session, self.table.candidates(), points)
        self.outbox.ask(aligned, content, lambda result: self._tell_answer(result, early))

    def _tell_answer(self, result: bytes, early: bool) -> None:
        found = self.alignments.points_of_both(result, "an alignment" if early else "")
        if found is None:
            return
        own, twice, order = found
        # Not earlier: only now has the guest sent everything about the batches of the run before.
        self.freeze()
        self._order.write(msgspec.msgpack.encode((self.progress.run, order)))
        # An earlier release does not know FirstAnswer, so it is sent only before the first batch.
        answer = (
            Answer(own, twice)
            if self.rows.batches.count
            else FirstAnswer(own, twice, self.settings.least_batch)
        )
        self.exchange.tell("outputs", self._guest, "answer", content_of(answer))

    def _take_aligned(self, message: Message) -> None:
        settings, progress = self.settings, self.progress
        run, order = self._order_of
        # The run may have failed before this came. Its batches are fixed all the same, because another host
        # may have learnt from them.
        late = (
            bool(self._order)
            and run == message.run
            and (message.run < progress.run or progress.phase == FAILED)
        )
        if not late:
            if message.run == progress.run and progress.phase != ALIGNING:
                self.exchange.repeated()
                return
            if not self.exchange.is_present(message, ALIGNING):
                return
        content: Aligned = read_content(self.exchange.unsealed(self._guest, message), Aligned)
        names = names_at(numbers_of(content.places, "<u4"), order)
        batches = self.rows.batches
        size = batches.size_with(len(names), settings.least_batch)
        fresh = len(names) // size
        if len(names) % size or batches.count + fresh == 0 or fresh > batches.room:
            raise BadRecord("alignment", f"{len(names)} entities are no batches of {size}, or too many")
        if message.alignment != batches.digest(names, self.exchange.session("", message.run)):
            raise BadRecord("alignment", "the digest is of other entities, or of other batches")
        self._order.clear()
        self.choose(names)
        if not late:
            self.join(message.alignment)

    @property
    def _order_of(self) -> tuple[int, list[str]]:
        """The run whose points were answered and whose batches are not known yet, and names in the order of
        the own points."""
        return (
            msgspec.msgpack.decode(self._order.content, type=tuple[int, list[str]])
            if self._order
            else (0, [])
        )

    @property
    def _answered(self) -> bool:
        return self._order_of[0] == self.progress.run

    # ---- rounds

    def begin_round(self) -> None:
        numbers = numbers_to_bytes(self.rounds.own_numbers().tolist())
        content = request(Encrypting(self.rounds.hidden, self.exchange.place("outputs"), numbers))
        self.outbox.ask(
            encrypted, content, lambda vector: self.exchange.tell("outputs", self._guest, "outputs", vector)
        )

    def _take_residuals(self, message: Message) -> None:
        kinds, rounds = self.settings.kinds, self.rounds
        vector = self.exchange.unsealed(self._guest, message)
        rounds.scheme.check(
            vector, len(rounds.matrix), kinds.changes_sum if rounds.for_curvature else kinds.residuals
        )
        ask_for_product(self, [vector], b"", lambda product: upload_product(self, product))

    def tell_products(self, products: list[int]) -> None:
        self.progress.phase = DECIDING
        self.exchange.remember()
        kind = Kind.of(self.settings.products)
        content = request(
            Encrypting(self.rounds.hidden, self.exchange.place("dots"), numbers_to_bytes(products), kind)
        )
        self.outbox.ask(
            encrypted, content, lambda vector: self.exchange.tell("outputs", self._guest, "dots", vector)
        )
