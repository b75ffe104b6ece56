"""A host: columns and no labels. It tells the guest hidden inner products, and hears hidden residuals."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from streamfl.quasi_newton.alignment import POINT_BYTES, set_digest
from streamfl.quasi_newton.chunks import Chunks
from streamfl.quasi_newton.gradient_upload import ask_for_product, upload_product
from streamfl.quasi_newton.member import Desk
from streamfl.quasi_newton.messages import Aligned, Answer, Blinded, Message, content_of, read_content
from streamfl.quasi_newton.party_settings import ALIGNING, DECIDING, OUTPUTS, PartySettings
from streamfl.quasi_newton.scheme import numbers_to_bytes
from streamfl.quasi_newton.scoring_host import HostScoring
from streamfl.quasi_newton.scoring_party import ScoringParty
from streamfl.quasi_newton.training_rows import NAME_BYTES
from streamfl.quasi_newton.works import (
    Aligning,
    Encrypting,
    Kind,
    aligned,
    encrypted,
    request,
)
from streamfl.role import PeerError

__all__ = ["HostTask"]


class HostTask(ScoringParty):
    """A host's partition."""

    def __init__(self, settings: PartySettings, desk: Desk) -> None:
        super().__init__(settings, desk)
        self.scoring: HostScoring = HostScoring(self)
        # What the guest said before the coordinator's beginning came, behind the number of its run.
        self._asked = Chunks(self.parts, "asked", 8 + settings.most * POINT_BYTES)
        # Names in the order of the points that the guest has.
        self._order = Chunks(self.parts, "order", 5 + settings.most * NAME_BYTES)

    def restore(self, key: bytes, value: bytes) -> None:
        if not (self._asked.restore(key, value) or self._order.restore(key, value)):
            super().restore(key, value)

    def take_linked(self, channel: str, message: Message) -> None:
        if channel == "questions":
            self.scoring.take(message)
        elif message.kind == "blinded":
            self._take_blinded(message)
        elif message.kind == "aligned":
            self._take_aligned(message)
        elif message.kind == "residuals":
            if self.is_present(message, OUTPUTS):
                self._take_residuals(message)
        else:
            raise PeerError("malformed", f"{message.kind!r} is nothing that a guest says")

    # ---- alignment

    def _take_blinded(self, message: Message) -> None:
        progress = self.progress
        if message.run < progress.run or (message.run == progress.run and (progress.phase != ALIGNING or self._order)):
            self.repeated()
            return
        if message.run > progress.run + 1 or message.round:
            raise PeerError("implausible", f"an alignment for run {message.run} after run {progress.run}")
        points = read_content(self.unsealed(self.settings.guest, message), Blinded).points
        if len(points) % POINT_BYTES or len(points) > self.settings.most * POINT_BYTES:
            raise PeerError("shape", f"{len(points)} bytes are no points, or too many")
        if self._asked:
            # One question a run: with as many as it likes the guest could ask for every name there is.
            self.repeated()
            return
        if message.run == progress.run:
            self._answer(points)
        else:
            self._asked.write(message.run.to_bytes(8, "big") + points)

    def align(self) -> None:
        asked = self._asked.content
        self._asked.clear()
        self._order.clear()
        if asked[:8] == self.progress.run.to_bytes(8, "big"):
            self._answer(asked[8:], early=True)

    def _answer(self, points: bytes, *, early: bool = False) -> None:
        """early: the points came before, and whoever is heard now has not sent them."""
        settings = self.settings
        content = request(Aligning(settings.secret, self.session(settings.own), self.rows.names, settings.most, points))
        self.desk.ask(aligned, content, lambda result: self._tell_answer(result, early))

    def _tell_answer(self, result: bytes, early: bool) -> None:
        found: tuple[Any, ...] = msgspec.msgpack.decode(result, type=tuple)
        if found[0] and early:
            self.desk.counts["refused_alignments"] += 1
            self.desk.notices.say("alignment", f"the guest's points for an alignment are refused: {found[1]}")
            return
        if found[0]:
            raise PeerError(found[0], found[1])
        _, own, twice, order = found
        self._order.write(msgspec.msgpack.encode(order))
        self.tell("outputs", self.settings.guest, "answer", content_of(Answer(own, twice)))

    def _take_aligned(self, message: Message) -> None:
        settings, progress = self.settings, self.progress
        if message.run == progress.run and progress.phase != ALIGNING:
            self.repeated()
            return
        if not self.is_present(message, ALIGNING):
            return
        content: Aligned = read_content(self.unsealed(settings.guest, message), Aligned)
        order: list[str] = msgspec.msgpack.decode(self._order.content, type=list[str]) if self._order else []
        if len(content.places) % 4:
            raise PeerError("shape", f"{len(content.places)} bytes are no places")
        places = np.frombuffer(content.places, "<u4")
        if len(set(places.tolist())) != len(places) or not len(places) or int(places.max()) >= len(order):
            raise PeerError("alignment", "a place is there twice, or is none")
        if len(places) % settings.learning.batch:
            raise PeerError("alignment", f"{len(places)} entities are no batches of {settings.learning.batch}")
        names = [order[place] for place in places]
        if message.alignment != set_digest(names, self.session("")):
            raise PeerError("alignment", "the digest is of other entities")
        self._order.clear()
        self.join(names, message.alignment)

    # ---- rounds

    def begin_round(self) -> None:
        numbers = numbers_to_bytes(self.own_numbers().tolist())
        content = request(Encrypting(self.hidden, self.place("outputs"), numbers))
        self.desk.ask(encrypted, content, lambda vector: self.tell("outputs", self.settings.guest, "outputs", vector))

    def _take_residuals(self, message: Message) -> None:
        settings = self.settings
        vector = self.unsealed(settings.guest, message)
        kind = settings.kinds.changes_sum if self.for_curvature else settings.kinds.residuals
        self.scheme.check(vector, len(self.matrix), kind)
        ask_for_product(self, [vector], b"", lambda product: upload_product(self, product))

    def tell_products(self, products: list[int]) -> None:
        self.progress.phase = DECIDING
        self.remember()
        kind = Kind.of(self.settings.products)
        content = request(Encrypting(self.hidden, self.place("dots"), numbers_to_bytes(products), kind))
        self.desk.ask(encrypted, content, lambda vector: self.tell("outputs", self.settings.guest, "dots", vector))
