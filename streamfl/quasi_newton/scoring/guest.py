"""The guest's side of scoring: it adds the hosts' parts of an output, calibrates the sum and publishes it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from streamfl.contract.measurement import Measurement, declared
from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.messages import Message, numbers_of, read_content
from streamfl.quasi_newton.metrics import GuestMetrics, HeldOutMetrics
from streamfl.quasi_newton.rows.alignment import check_answer, set_digest
from streamfl.quasi_newton.rows.held_out import held_out_figures
from streamfl.quasi_newton.rows.learnt_batches import NAME_BYTES
from streamfl.quasi_newton.scoring.calibration import Calibrated, LatestCalibration
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
from streamfl.quasi_newton.scoring.predictions import predictions_of
from streamfl.quasi_newton.scoring.scorecard import Calibration, fit_calibration
from streamfl.quasi_newton.scoring.scores import BARE, CALIBRATED, Scores
from streamfl.quasi_newton.scoring.session import ASKED, CHOSEN, IDLE, SHUT, Session
from streamfl.quasi_newton.state import SESSION, SOUGHT
from streamfl.quasi_newton.training.background_tasks import blinded, matched, read_alignment
from streamfl.quasi_newton.training.party import PartyTask
from streamfl.records.pending_headers import PendingHeaders
from streamfl.roles.rhythm import Rhythm
from streamfl.state.clock_guard import earliest
from streamfl.state.value_fragments import ValueFragments

__all__ = ["GuestScoring"]

PUBLISHED_AT_ONCE = 10_000


class GuestScoring(Scoring):
    """The owner of sessions with hosts, of scores and of the calibration, at one partition of the guest."""

    def __init__(self, party: PartyTask) -> None:
        super().__init__(party)
        settings = party.settings
        self._hosts = settings.federation.hosts
        self._lines = {
            host: ScoringLink(settings, party.given, party.outbox, f"questions/{host}", host, host)
            for host in self._hosts
        }
        self._sessions = {host: Session() for host in self._hosts}
        self._kept_sessions = party.parts.named(SESSION, bytes.decode, Session, self._restore_session)
        # Entities of the present question; then the chosen ones, in the order of the places.
        most = 5 + settings.alignment.limit * NAME_BYTES
        self._sought = {host: ValueFragments(party.parts, SOUGHT, most, host) for host in self._hosts}
        self.scores = Scores(party.parts, party.table, len(self._hosts))
        self._calibration = LatestCalibration(party.parts)
        # Cached held-out figures, after what they were computed from: every scrape asks for them, and they
        # take a sort.
        self._figures: tuple[tuple[int, Calibration | None], dict[str, float]] = (-1, None), {}
        self._labels = Rhythm()
        # When time first passed in this process.
        self._awake_since: float | None = None
        self._pending_headers = PendingHeaders(party.parts, party.given.carry, settings.alignment.limit)
        party.table.on_forget = self._forget

    # ---- what the runtime asks

    @property
    def wake_at(self) -> float | None:
        if not self._ready():
            return None
        if self._may_calibrate() or self.scores.pending(self._told):
            return 0.0
        return earliest(*map(self._due, self._hosts))

    @property
    def owed(self) -> bool:
        return bool(self.owing)

    @property
    def owing(self) -> Sequence[str]:
        return [host for host in self._hosts if self._sessions[host].phase in (ASKED, CHOSEN)]

    @property
    def awaited(self) -> str | None:
        asked = self.owing
        if not self._ready():
            return None
        if not asked:
            return self._lacking_for_calibration()
        most = max(len(self.scores.open(self._hosts.index(host))) for host in asked)
        return f"waits for {', '.join(asked)} to answer a question: {most:,} entities have no points yet"

    @property
    def trouble(self) -> str | None:
        shut = [host for host in self._hosts if self._sessions[host].phase == SHUT]
        if not shut or not self._ready():
            return None
        return (
            f"{', '.join(shut)} answers no questions about model {self._sessions[shut[0]].version}, having "
            "answered for scoring.versions of them: no further entity is scored until that host allows more"
        )

    def set_back(self, now: float) -> None:
        for host, session in self._sessions.items():
            if session.since > now:
                session.since = now
                self._remember(host)

    def pass_time(self, now: float) -> None:
        if self._labels.heard is None:
            # After a restart there are figures although no label may have come yet.
            self.label_came(now)
        if self._awake_since is None or self._awake_since > now:
            self._awake_since = now
        if not self._ready():
            return
        for host, session in self._sessions.items():
            due = self._due(host)
            if due is None or due > now:
                continue
            if session.phase in (ASKED, CHOSEN):
                self._counts.abandoned_questions += 1
                session.fruitless += 1
            self._ask(host, now)
        if self._may_calibrate():
            self._calibrate()
        self._publish()

    def measure(self) -> Iterator[Measurement]:
        yield from super().measure()
        yield GuestMetrics.timed_out_rounds(self._counts.abandoned_questions)
        if not self._ready():
            return
        yield GuestMetrics.held_out_entities(len(self.scores.judged))
        of = self.scores.judgements, self.calibration
        if self._figures[0] != of:
            self._figures = of, held_out_figures(*self._held_out(), self.calibration)
        # Without a calibration there are only the first two.
        for metric, value in zip(declared(HeldOutMetrics), self._figures[1].values(), strict=False):
            yield metric(value, until=self._labels.overdue_at or 0.0)

    # ---- what the party has come to

    def came(self, name: str) -> None:
        """The table has an entity's columns."""
        if (record := self._party.outbox.record) is not None:
            self._pending_headers.came(name, record)
        if self._ready():
            self.scores.came(name)

    def labelled(self, name: str) -> None:
        """The table has an entity's label."""
        if self._ready():
            self.scores.labelled(name)

    def label_came(self, now: float) -> None:
        self._labels.set_back(now)
        self._labels.came(now, now)

    def went_on(self) -> None:
        """Begin new sessions if there is a new version of the model."""
        model = self._party.trained
        if model is None:
            return
        for host, session in self._sessions.items():
            if session.version != model.version:
                self._sessions[host] = Session(model.version)
                self._sought[host].clear()
                self._remember(host)

    @property
    def calibration(self) -> Calibration | None:
        """The calibration of the present version; None before it is fitted."""
        found = self._calibration.fitted
        return (
            Calibration(found.intercept, found.slope)
            if found is not None and found.version == self._model.version
            else None
        )

    # ---- messages

    def take(self, host: str, message: Message) -> None:
        if message.kind not in ("found", "points", "closed"):
            raise BadRecord("malformed", f"{message.kind!r} is not an answer of a host")
        # After a restart this message may come before the scores of the version were begun.
        self._ready()
        session = self._sessions[host]
        phase = CHOSEN if message.kind == "points" else ASKED
        now, then = (session.version, session.number, session.phase), (message.run, message.round, phase)
        if then < now or (session.phase == IDLE and message.round > 0 and then[:2] == now[:2]):
            self._party.exchange.repeated()
            return
        if then > now:
            text = f"{message.kind} of session {message.round} under model {message.run}: nothing led to it"
            raise BadRecord("implausible", text)
        content = self._lines[host].heard(message)
        if message.kind == "found":
            self._take_found(host, read_content(content, ScoringAnswer))
        elif message.kind == "points":
            self._take_points(host, message.alignment, read_content(content, Points))
        else:
            read_content(content, Closed)
            session.phase = SHUT
            self._sought[host].clear()
            self._remember(host)
            self._party.outbox.notices.say("closed", self.trouble)

    def _take_found(self, host: str, found: ScoringAnswer) -> None:
        names = self._names(host)
        check_answer(found.own, found.twice, len(names), self._party.settings.alignment.limit)
        session = self._session_name(host)
        content = self._party.alignments.request(host, session, names, found.own, found.twice)
        self._party.outbox.ask(matched, content, lambda result: self._choose(host, result))

    def _choose(self, host: str, result: bytes) -> None:
        (places,) = read_alignment(result)
        session = self._sessions[host]
        chosen = sorted(places)
        session.phase = CHOSEN if chosen else IDLE
        session.fruitless = 0 if chosen else session.fruitless + 1
        self._remember(host)
        self._sought[host].write(msgspec.msgpack.encode(chosen) if chosen else b"")
        content = ChosenPlaces(np.array([places[name] for name in chosen], "<u4").tobytes())
        digest = set_digest(chosen, self._session_name(host))
        self._lines[host].tell(session.version, session.number, "chosen", content, digest)

    def _take_points(self, host: str, alignment: bytes, points: Points) -> None:
        names, session = self._names(host), self._sessions[host]
        numbers = numbers_of(points.points, "<i4")
        if alignment != set_digest(names, self._session_name(host)):
            raise BadRecord("alignment", "other entities were chosen")
        if len(numbers) != len(names):
            raise BadRecord("shape", f"points of {len(numbers)} entities answer {len(names)}")
        largest = math.floor(self._bound / self._settings.scoring.quantum + 0.5)
        if (np.abs(numbers[numbers != NO_POINTS]) > largest).any():
            raise BadRecord(
                "out_of_bounds", f"a part of an output is beyond learning.output_bound = {self._bound:g}"
            )
        place = self._hosts.index(host)
        known = self._party.table.with_columns()
        complete = [
            name for name, number in zip(names, numbers.tolist(), strict=True)
            if name in known and self.scores.put(name, place, number)
        ]  # fmt: skip
        session.phase = IDLE
        self._sought[host].clear()
        self._remember(host)
        self._add(complete)

    def _add(self, names: list[str]) -> None:
        """Compute u = u_B + quantum sum of points, for entities for which all hosts have answered."""
        if not names:
            return
        own = self._model.outputs(self._party.table.rows(names)[0])
        learnt = self._party.learnt
        for name, output in zip(names, own.tolist(), strict=True):
            points = self.scores.points(name)
            there_is_one = NO_POINTS not in points and abs(output) <= self._bound
            self._counts.unscored_entities += not there_is_one
            total = output + self._settings.scoring.quantum * sum(points)
            self.scores.complete(name, total if there_is_one else None, name not in learnt)

    # ---- questions

    def _due(self, host: str) -> float | None:
        """When the next question to a host is due; None if there is nothing to ask."""
        settings = self._settings
        return self._sessions[host].due(
            len(self.scores.open(self._hosts.index(host))),
            self._party.table.latest,
            self._awake_since or 0.0,
            settings.alignment.patience_seconds,
            settings.scoring.interval_seconds,
        )

    def _ask(self, host: str, now: float) -> None:
        session = self._sessions[host]
        names = sorted(self.scores.open(self._hosts.index(host)))
        session.number, session.phase, session.since = session.number + 1, ASKED, now
        self._remember(host)
        self._sought[host].write(msgspec.msgpack.encode(names))
        self._counts.questions += 1
        content = self._party.alignments.request(host, self._session_name(host), names)
        self._party.outbox.ask(blinded, content, lambda points: self._tell_question(host, points))

    def _tell_question(self, host: str, points: bytes) -> None:
        session = self._sessions[host]
        self._lines[host].tell(session.version, session.number, "question", ScoringQuestion(points))

    # ---- what is published

    @property
    def _told(self) -> int:
        return BARE if self.calibration is None else CALIBRATED

    def _may_calibrate(self) -> bool:
        judged = self.scores.judged
        enough = self.calibration is None and len(judged) >= self._settings.scoring.calibration_entities
        return enough and len(set(judged.values())) == 2

    def _lacking_for_calibration(self) -> str | None:
        """Why predictions have no probability; None if they have one, or will have at the next tick."""
        judged, needed = self.scores.judged, self._settings.scoring.calibration_entities
        if self.calibration is not None or self._may_calibrate():
            return None
        lacking = "predictions have no probability and no score yet: "
        if len(judged) < needed:
            return (
                f"{lacking}{len(judged):,} of {needed:,} entities that have an outcome and are in no batch "
                "have an output (scoring.calibration_entities)"
            )
        return (
            f"{lacking}all {len(judged):,} entities that have an outcome and are in no batch have the same "
            "label, and a calibration needs both"
        )

    def _calibrate(self) -> None:
        outputs, labels = self._held_out()
        found = fit_calibration(outputs, labels)
        self._calibration.keep(Calibrated(self._model.version, found.intercept, found.slope, len(outputs)))

    def _held_out(self) -> tuple[Any, Any]:
        """Outputs and labels of held-out entities, in the order of their names, so that sums round the same
        after a restart."""
        names = sorted(self.scores.judged)
        outputs = np.array([self.scores.output(name) for name in names], dtype=np.float64)
        return outputs, np.array([self.scores.judged[name] for name in names], dtype=np.float64)

    def _publish(self) -> None:
        """Publish at most ``PUBLISHED_AT_ONCE`` predictions, so that no commit is too large."""
        told, calibration = self._told, self.calibration
        names = sorted(self.scores.pending(told))[:PUBLISHED_AT_ONCE]
        outputs = [self.scores.output(name) for name in names]
        revisions = [self.scores.publish(name, told) for name in names]
        predictions = predictions_of(
            names, outputs, revisions, self._model.version, calibration, self._settings.scoring.scale
        )
        for name, prediction in zip(names, predictions, strict=True):
            self._party.outbox.publish(
                "predictions", name, self._party.given.encode(prediction), self._pending_headers.of(name)
            )
            if told == CALIBRATED:
                # Later predictions are of a later model, and no sample has caused them.
                self._pending_headers.forget(name)
        self._counts.predictions += len(names)

    def _forget(self, name: str) -> None:
        """The table has forgotten the entity."""
        self.scores.forget(name)
        self._pending_headers.forget(name)

    # ----

    @property
    def _bound(self) -> float:
        return self._party.settings.kinds.inner_products.bound

    def _ready(self) -> bool:
        model = self._party.trained
        if model is None:
            return False
        if self.scores.version != model.version:
            self.scores.begin(model.version)
        return True

    def _names(self, host: str) -> list[str]:
        content = self._sought[host].content
        return msgspec.msgpack.decode(content, type=list[str]) if content else []

    def _session_name(self, host: str) -> bytes:
        session = self._sessions[host]
        return self._lines[host].session(session.version, session.number)

    def _remember(self, host: str) -> None:
        self._kept_sessions.remember(host, self._sessions[host])

    def _restore_session(self, host: str, session: Session) -> None:
        if host not in self._sessions:
            raise BadRecord("malformed", f"a session with {host!r} in state, which is no host")
        self._sessions[host] = session
