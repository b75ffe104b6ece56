"""A host's side of scoring: for each version of the model, it sends its part of common entities' outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
import numpy as np

from streamfl.contract.role import BadRecord, Measurement
from streamfl.encoding.changelog_checks import check_name, check_within
from streamfl.encoding.wire import Count
from streamfl.quasi_newton.messages import Message, numbers_of, read_content
from streamfl.quasi_newton.metrics import HostMetrics
from streamfl.quasi_newton.rows.alignment import POINT_BYTES, check_points, names_at, set_digest
from streamfl.quasi_newton.rows.learnt_batches import NAME_BYTES
from streamfl.quasi_newton.scoring.messages import (
    NO_POINTS,
    ChosenPlaces,
    Closed,
    Points,
    ScoringAnswer,
    ScoringLink,
    ScoringQuestion,
)
from streamfl.quasi_newton.scoring.party import Scoring
from streamfl.quasi_newton.state import ANSWERED, EARLY, OFFERED_NAMES, SCORING
from streamfl.quasi_newton.training.background_tasks import aligned
from streamfl.quasi_newton.training.party import PartyTask
from streamfl.state.value_fragments import ValueFragments

__all__ = ["HostScoring"]

IDLE, OFFERED = range(2)
PLACE_BYTES = 16


class _State(msgspec.Struct, array_like=True):
    """version: of the model. number: of the latest session under it. phase: OFFERED waits for the guest's
    choice. answered: how many versions points were sent for. released: the latest of these versions.
    """

    version: Count = 0
    number: Count = 0
    phase: Annotated[int, msgspec.Meta(ge=IDLE, le=OFFERED)] = IDLE
    answered: Count = 0
    released: Count = 0


class HostScoring(Scoring):
    """The owner of the present session, and of the last version for which the host answered about each
    entity."""

    def __init__(self, party: PartyTask) -> None:
        super().__init__(party)
        settings = party.settings
        self._guest = settings.federation.guest_party
        self._line = ScoringLink(
            settings, party.given, party.outbox, "answers", self._guest, settings.required_party()
        )
        self._state = _State()
        self._remember_state = party.parts.single(SCORING, _State, self._restore)
        # Names in the order of the points that the guest has.
        self._offered = ValueFragments(party.parts, OFFERED_NAMES, 5 + settings.alignment.limit * NAME_BYTES)
        # A question about the model of a training whose end this host does not know yet, after its version
        # and number.
        self._early = ValueFragments(party.parts, EARLY, PLACE_BYTES + settings.alignment.limit * POINT_BYTES)
        self._answered: dict[str, int] = {}
        self._kept_answered = party.parts.named(ANSWERED, check_name, int, self._restore_answered)
        party.table.on_forget = self._forget

    # ---- what the runtime asks

    @property
    def owed(self) -> bool:
        return self._state.phase == OFFERED

    @property
    def owing(self) -> Sequence[str]:
        return [self._settings.federation.guest_party]

    @property
    def trouble(self) -> str | None:
        model = self._party.trained
        if model is None or self._may_answer(model.version):
            return None
        return (
            f"points of {self._state.answered} versions of the model were sent, as many as scoring.versions "
            f"allows: none are sent for version {model.version}. Each version reveals more of the columns to "
            "the guest: raise it only if they may be known"
        )

    def pass_time(self, now: float) -> None:
        """A host sends nothing by time. The model is decoded here so that a damaged changelog is refused
        before metrics read it."""
        model = self._party.trained
        assert model is None or model.version >= 0

    def measure(self) -> Iterator[Measurement]:
        yield from super().measure()
        left = max(0, self._settings.scoring.versions - self._state.answered)
        yield HostMetrics.model_versions_left(left)

    # ---- what the party has come to

    def went_on(self) -> None:
        """If there is a new version of the model: end the session of an older one, and answer a question that
        came early."""
        model, state = self._party.trained, self._state
        if model is None:
            return
        if state.version < model.version and state.phase == OFFERED:
            state.phase = IDLE
            self._offered.clear()
            self._remember()
        if self._early and self._early_place[0] <= model.version:
            (version, number), points = self._early_place, self._early.content[PLACE_BYTES:]
            self._early.clear()
            if version == model.version and (version, number) > (state.version, state.number):
                self._answer(version, number, points, early=True)

    # ---- messages

    def take(self, message: Message) -> None:
        if message.kind == "question":
            self._take_question(message)
        elif message.kind == "chosen":
            self._take_chosen(message)
        else:
            raise BadRecord("malformed", f"{message.kind!r} is not a question of a guest")

    def _take_question(self, message: Message) -> None:
        version, place = self._version, (message.run, message.round)
        if place <= (self._state.version, self._state.number) or message.run < version:
            self._party.exchange.repeated()
            return
        if not 0 < message.run <= max(version, self._party.progress.run) or not message.round:
            raise BadRecord("implausible", f"a question about model {message.run}: nothing led to it")
        points = read_content(self._line.heard(message), ScoringQuestion).points
        check_points(points, self._party.settings.alignment.limit)
        if message.run == version:
            self._answer(*place, points)
        elif self._early and place <= self._early_place:
            self._party.exchange.repeated()
        else:
            head = b"".join(number.to_bytes(PLACE_BYTES // 2, "big") for number in place)
            self._early.write(head + points)

    def _answer(self, version: int, number: int, points: bytes, *, early: bool = False) -> None:
        """early: whether the question came in an earlier message than the present one."""
        if not self._may_answer(version):
            self._close(version, number)
            return
        names = sorted(
            name for name in self._party.table.with_columns() if self._answered.get(name) != version
        )
        session = self._line.session(version, number)
        content = self._party.alignments.request(self._guest, session, names, points)
        self._party.outbox.ask(aligned, content, lambda result: self._offer(version, number, result, early))

    def _offer(self, version: int, number: int, result: bytes, early: bool) -> None:
        found = self._party.alignments.points_of_both(result, "scoring" if early else "")
        if found is None:
            return
        own, twice, order = found
        self._counts.questions += 1
        self._go_to(version, number, OFFERED)
        self._offered.write(msgspec.msgpack.encode(order))
        self._line.tell(version, number, "found", ScoringAnswer(own, twice))

    def _close(self, version: int, number: int) -> None:
        self._counts.closed_questions += 1
        self._go_to(version, number, IDLE)
        self._party.outbox.notices.say("closed", str(self.trouble))
        self._line.tell(version, number, "closed", Closed())

    def _take_chosen(self, message: Message) -> None:
        state, place = self._state, (message.run, message.round)
        now = state.version, state.number
        if (
            place < now
            or (place == now and state.phase == IDLE and state.number)
            or message.run < self._version
        ):
            self._party.exchange.repeated()
            return
        if place != now or not state.number:
            raise BadRecord(
                "implausible",
                f"entities of session {message.round} under model {message.run}: nothing led to them",
            )
        content: ChosenPlaces = read_content(self._line.heard(message), ChosenPlaces)
        order: list[str] = (
            msgspec.msgpack.decode(self._offered.content, type=list[str]) if self._offered else []
        )
        names = names_at(numbers_of(content.places, "<u4"), order)
        if message.alignment != set_digest(names, self._line.session(*place)):
            raise BadRecord("alignment", "the digest is of other entities")
        if names and state.released != state.version:
            state.answered, state.released = state.answered + 1, state.version
        self._go_to(state.version, state.number, IDLE)
        self._offered.clear()
        if names:
            self._line.tell(
                state.version, state.number, "points", Points(self._points(names)), message.alignment
            )

    def _points(self, names: list[str]) -> bytes:
        """round(u_h / quantum) of each entity, as bytes. Notes that these are answered for this version."""
        table, version = self._party.table, self._version
        there = table.with_columns()
        known = [place for place, name in enumerate(names) if name in there]
        points = np.full(len(names), NO_POINTS, dtype="<i4")
        if known:
            outputs = self._model.outputs(table.rows([names[place] for place in known])[0])
            within = np.abs(outputs) <= self._party.settings.kinds.inner_products.bound
            rounded = np.rint(outputs / self._settings.scoring.quantum)
            points[known] = np.where(within, rounded, NO_POINTS).astype("<i4")
            self._counts.unscored_entities += int((~within).sum())
        for place in known:
            self._answered[names[place]] = version
            self._kept_answered.remember(names[place], version)
        self._counts.answered_entities += len(known)
        return points.tobytes()

    # ----

    @property
    def _early_place(self) -> tuple[int, int]:
        head = self._early.content[:PLACE_BYTES]
        return int.from_bytes(head[:8], "big"), int.from_bytes(head[8:], "big")

    def _may_answer(self, version: int) -> bool:
        return self._state.released == version or self._state.answered < self._settings.scoring.versions

    def _go_to(self, version: int, number: int, phase: int) -> None:
        self._state.version, self._state.number, self._state.phase = version, number, phase
        self._remember()

    def _forget(self, name: str) -> None:
        if self._answered.pop(name, None) is not None:
            self._kept_answered.forget(name)

    def _remember(self) -> None:
        self._remember_state(self._state)

    def _restore(self, state: _State) -> None:
        self._state = state

    def _restore_answered(self, name: str, version: int) -> None:
        check_within(version, 0, 2**53, "a version")
        self._answered[name] = version
