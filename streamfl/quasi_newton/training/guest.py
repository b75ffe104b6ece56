"""The guest has the labels, knows which entities are common, and adds the hosts' numbers, which hosts may not
show each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.config import QuasiNewtonSettings
from streamfl.quasi_newton.encryption.keys import LARGEST_BITS
from streamfl.quasi_newton.encryption.scheme import numbers_to_bytes
from streamfl.quasi_newton.learning.taylor import residuals
from streamfl.quasi_newton.messages import Aligned, Blinded, FirstAnswer, Message, content_of, read_content
from streamfl.quasi_newton.metrics import MemberCounts
from streamfl.quasi_newton.rows.alignment import POINT_BYTES, check_points
from streamfl.quasi_newton.rows.batches import FrozenBatches
from streamfl.quasi_newton.rows.learnt_batches import MOST_EVER
from streamfl.quasi_newton.scoring.guest import GuestScoring
from streamfl.quasi_newton.scoring.party import ScoringParty
from streamfl.quasi_newton.state import COMMON, DOTS, HOST_OUTPUTS, LEAST, PRODUCTS
from streamfl.quasi_newton.training.background_tasks import (
    Adding,
    Kind,
    Product,
    added,
    blinded,
    matched,
    read_alignment,
    request,
)
from streamfl.quasi_newton.training.given import PartyGiven
from streamfl.quasi_newton.training.gradient_upload import ask_for_product, upload_product
from streamfl.quasi_newton.training.training_progress import ADDING, ALIGNING, DECIDING, OPENING, OUTPUTS
from streamfl.records.labels import Label
from streamfl.roles.partitioned_role import Outbox
from streamfl.state.value_fragments import ValueFragments

__all__ = ["GuestTask"]

NOT_COMMON = 2**32 - 1
ROUND_BYTES = 16
KNOWN = b"\1"


class GuestTask(ScoringParty):
    """The state machine of the guest's partition."""

    def __init__(
        self, settings: QuasiNewtonSettings, given: PartyGiven, outbox: Outbox[MemberCounts]
    ) -> None:
        super().__init__(settings, given, outbox)
        self.scoring: GuestScoring = GuestScoring(self)
        # Sized for the longest key, because the remembered vectors may be under another key than the
        # settings'.
        vector = settings.learning.batch * LARGEST_BITS // 4
        dots = (4 * settings.learning.memory + 4) * LARGEST_BITS // 4
        # By host: the places of the own names among its points; vectors and inner products of a round, after
        # run and round.
        hosts = settings.federation.hosts
        self._common = {
            host: ValueFragments(self.parts, COMMON, 1 + 4 * settings.alignment.limit, host) for host in hosts
        }
        # By host: the fewest rows of a batch that are enough for it, 8 bytes.
        self._least = {host: ValueFragments(self.parts, LEAST, 8, host) for host in hosts}
        self._outputs = {
            host: ValueFragments(self.parts, HOST_OUTPUTS, ROUND_BYTES + vector, host) for host in hosts
        }
        self._dots = {host: ValueFragments(self.parts, DOTS, ROUND_BYTES + dots, host) for host in hosts}
        # The own products of the round, until those of all hosts have come.
        self._products = ValueFragments(self.parts, PRODUCTS, dots)

    def owing_parties(self) -> Sequence[str]:
        hosts, phase = self.settings.federation.hosts, self.progress.phase
        if phase == OUTPUTS:
            return [host for host in hosts if not self._of_round(self._outputs[host])]
        said = self._common if phase == ALIGNING else self._dots
        return [host for host in hosts if not said[host]]

    def take(self, channel: str, message: Any, now: float) -> None:
        if isinstance(message, Label):
            self.outbox.counts.labels += 1
            self._now = now
            self.put(message.client, label=int(2 * message.label - 1))
            self.scoring.labelled(message.client)
        else:
            super().take(channel, message, now)

    def take_linked(self, channel: str, message: Message) -> None:
        said, _, host = channel.partition("/")
        if said == "answers":
            self.scoring.take(host, message)
        elif message.kind == "answer":
            self._take_answer(host, message)
        elif message.kind == "outputs":
            self._take_outputs(host, message)
        elif message.kind == "dots":
            self._take_dots(host, message)
        else:
            raise BadRecord("malformed", f"{message.kind!r} is not a message of a host")

    # ---- alignment

    def align(self) -> None:
        self.freeze()
        for by_host in (self._common, self._least, self._outputs, self._dots):
            for fragments in by_host.values():
                fragments.clear()
        self._products.clear()
        for host in self.settings.federation.hosts:
            content = self.alignments.request(host, self.exchange.session(host), self.rows.candidates)
            self.outbox.ask(blinded, content, lambda points, host=host: self._tell_blinded(host, points))  # type: ignore[misc]

    def _tell_blinded(self, host: str, points: bytes) -> None:
        self.exchange.tell(f"residuals/{host}", host, "blinded", content_of(Blinded(points)))

    def _take_answer(self, host: str, message: Message) -> None:
        if message.run == self.progress.run and (self.progress.phase != ALIGNING or self._common[host]):
            self.exchange.repeated()
            return
        if not self.exchange.is_present(message, ALIGNING):
            return
        answer: FirstAnswer = read_content(self.exchange.unsealed(host, message), FirstAnswer)
        names = self.rows.candidates
        if len(answer.twice) != len(names) * POINT_BYTES:
            # It answers the points of another run, or a stranger's, and the host answers once in a training.
            self.fail(f"{host!r} has answered {len(answer.twice)} bytes of points to {len(names)} points")
            return
        check_points(answer.own, self.settings.alignment.limit)
        session = self.exchange.session(host)
        content = self.alignments.request(host, session, names, answer.own, answer.twice)
        self.outbox.ask(matched, content, lambda result: self._keep_common(host, answer.least, result))

    def _keep_common(self, host: str, least: int, result: bytes) -> None:
        (places,) = read_alignment(result)
        self._least[host].write(least.to_bytes(8, "big"))
        common = np.array([places.get(name, NOT_COMMON) for name in self.rows.candidates], "<u4")
        # The first byte shows that the host has answered, even if no name is common.
        self._common[host].write(KNOWN + common.tobytes())
        if all(self._common.values()):
            self._align_all()

    def _align_all(self) -> None:
        settings, rows = self.settings, self.rows
        names = rows.candidates
        places = {
            host: np.frombuffer(fragments.content[len(KNOWN) :], "<u4")
            for host, fragments in self._common.items()
        }
        least = [
            int.from_bytes(fragments.content, "big") or settings.learning.batch
            for fragments in self._least.values()
        ]
        for fragments in (*self._common.values(), *self._least.values()):
            fragments.clear()
        common = np.logical_and.reduce([one != NOT_COMMON for one in places.values()])
        size = rows.batches.size_with(int(common.sum()), max(settings.least_batch, *least))
        batches = FrozenBatches(size, settings.federation.seed)
        filled = batches.add(names[number] for number in np.flatnonzero(common))[: rows.batches.room]
        if not rows.batches.room:
            self.outbox.notices.say(
                "batches", f"{MOST_EVER:,} entities have been learnt from, and no further ones will be"
            )
        if not filled and not rows.batches.count:
            self.fail(f"{int(common.sum())} common entities are too few for a batch of {size}")
            return
        chosen = [name for number in filled for name in batches.batches[number]]
        place = {name: number for number, name in enumerate(names)}
        numbers = [place[name] for name in chosen]
        alignment = rows.batches.digest(chosen, self.exchange.session(""))
        self.progress.alignment = alignment
        for host, own in places.items():
            self.exchange.tell(
                f"residuals/{host}",
                host,
                "aligned",
                content_of(Aligned(own[numbers].astype("<u4").tobytes())),
            )
        self.choose(chosen)
        self.join(alignment)

    # ---- rounds

    def begin_round(self) -> None:
        if all(self._of_round(self._outputs[host]) for host in self.settings.federation.hosts):
            self._add_outputs()

    def _take_outputs(self, host: str, message: Message) -> None:
        settings, progress = self.settings, self.progress
        now, then = (progress.run, progress.round), (message.run, message.round)
        if then < now or (then == now and progress.phase > OUTPUTS):
            self.exchange.repeated()
            return
        # A host may have received the coordinator's decision before the guest. It is at most one round ahead.
        ahead = message.round - progress.round
        later = progress.phase == DECIDING and (ahead == 1 or ahead == 2 - progress.round % 2)
        if message.run != progress.run or not ((ahead == 0 and progress.phase == OUTPUTS) or later):
            raise BadRecord(
                "implausible", f"vectors of run {message.run}, round {message.round}: nothing led to them"
            )
        if message.alignment != progress.alignment:
            raise BadRecord("alignment", "other entities are in common there")
        vector = self.exchange.unsealed(host, message)
        kind = settings.kinds.changes if message.round % 2 else settings.kinds.inner_products
        self.rounds.scheme.check(vector, self.rows.batches.size, kind)
        head = _head(message)
        if self._outputs[host].content[:ROUND_BYTES] == head:
            self.exchange.repeated()
            return
        self._outputs[host].write(head + vector)
        if progress.phase == OUTPUTS:
            self.within_bounds(self.begin_round)

    def _add_outputs(self) -> None:
        settings, kinds = self.settings, self.settings.kinds
        own = self.rounds.own_numbers()
        if not self.rounds.for_curvature:
            own = residuals(own, kinds.labels.encode(self.rounds.signs))
        vectors = [self._of_round(self._outputs[host]) for host in settings.federation.hosts]
        ask_for_product(self, vectors, numbers_to_bytes(own.tolist()), self._tell_residuals)

    def _tell_residuals(self, product: Product) -> None:
        for host in self.settings.federation.hosts:
            self._outputs[host].clear()
            self.exchange.tell(f"residuals/{host}", host, "residuals", product.hidden)
        upload_product(self, product)

    def tell_products(self, products: list[int]) -> None:
        self.progress.phase = ADDING
        self.exchange.remember()
        self._products.write(numbers_to_bytes(products))
        self._add_products()

    def _take_dots(self, host: str, message: Message) -> None:
        settings, progress = self.settings, self.progress
        if progress.phase != OPENING and not self.exchange.is_present(message, ADDING):
            return
        if progress.phase == OPENING and not self.exchange.is_present(message, OPENING):
            return
        vector = self.exchange.unsealed(host, message)
        pairs = self.iterates.own.pair_count
        count = 4 * pairs + 4 if self.rounds.for_curvature else 2 * pairs + 2
        scheme = self.rounds.scheme
        scheme.check(vector, scheme.units(count, settings.products), settings.products)
        if self._dots[host]:
            self.exchange.repeated()
            return
        self._dots[host].write(_head(message) + vector)
        self._add_products()

    def _add_products(self) -> None:
        settings = self.settings
        if self.progress.phase != ADDING or not all(self._dots.values()):
            return
        vectors = [self._of_round(self._dots[host]) for host in settings.federation.hosts]
        kind, place = Kind.of(settings.products), self.exchange.place("sums")
        content = Adding(self.rounds.hidden, vectors, self._products.content, kind, place)
        self.outbox.ask(added, request(content), self._tell_sums)

    def _tell_sums(self, vector: bytes) -> None:
        for fragments in (*self._dots.values(), self._products):
            fragments.clear()
        self.progress.phase = DECIDING
        self.exchange.remember()
        self.exchange.upload("sums", vector)

    def _of_round(self, fragments: ValueFragments) -> bytes:
        """What a host sent for the present round; empty if nothing."""
        content = fragments.content
        head = self.progress.run.to_bytes(8, "big") + self.progress.round.to_bytes(8, "big")
        return content[ROUND_BYTES:] if content[:ROUND_BYTES] == head else b""


def _head(message: Message) -> bytes:
    return message.run.to_bytes(8, "big") + message.round.to_bytes(8, "big")
