"""The server: it has no data. It makes windows of announced names, asks parties for releases, and computes a
model from them.

It sees released numbers alone. Parties do not rely on it: they know from their own settings what they may
release.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import msgspec

from streamfl.contract.role import BadRecord, Measurement
from streamfl.dp_frank_wolfe.learning.estimator import Estimator
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.learning.weights import weights_of
from streamfl.dp_frank_wolfe.messages import (
    ANOTHER,
    SERVER_NAME,
    FittedModel,
    Frozen,
    Message,
    codec,
    content_of,
    read_content,
    records_of,
)
from streamfl.dp_frank_wolfe.metrics import MemberCounts, ServerMetrics
from streamfl.dp_frank_wolfe.party.manifest import digest_of_rows, manifest_content
from streamfl.dp_frank_wolfe.privacy.chains import PartyChains
from streamfl.dp_frank_wolfe.privacy.ledger import digest_of_question
from streamfl.dp_frank_wolfe.server.fit import Fit
from streamfl.dp_frank_wolfe.server.names import Names
from streamfl.dp_frank_wolfe.server.party_liveness import PartyLiveness
from streamfl.dp_frank_wolfe.server.selection import Selection
from streamfl.dp_frank_wolfe.server.told_means import ToldMeans
from streamfl.dp_frank_wolfe.serving.server import Partials
from streamfl.dp_frank_wolfe.state import MANIFEST, RUN
from streamfl.encoding.changelog_checks import UNDECODABLE
from streamfl.encoding.wire import VERSION, Count, Name
from streamfl.roles.partitioned_role import Outbox
from streamfl.roles.task_role import PartsTask
from streamfl.state.changelog import ChangedParts
from streamfl.state.clock_guard import earliest
from streamfl.state.value_fragments import ValueFragments

__all__ = ["ServerTask"]

# Phases: waiting for names; for parties to freeze the window; for their releases.
GATHERING, FREEZING, FITTING = range(3)


class _Run(msgspec.Struct, array_like=True):
    """The server's progress. window: the latest. manifest: digest of its rows, which parties confirm."""

    window: Count = 0
    phase: Annotated[int, msgspec.Meta(ge=GATHERING, le=FITTING)] = GATHERING
    manifest: Annotated[bytes, msgspec.Meta(max_length=32)] = b""


class PublishedModel(msgspec.Struct, frozen=True):
    """The model of one party's columns for users, as JSON under the party's name.

    version: the window that it was fitted on.
    columns: numbers of those with a weight.
    weights: for columns and labels that are scaled by their bounds.
    label_centre, label_bound: the labels' scale.
    intercept: of the whole model, in label bounds.
    """

    party: str
    version: int
    columns: list[int]
    weights: list[float]
    label_centre: float
    label_bound: float
    intercept: float = 0.0


class ServerTask(PartsTask):
    """The server's partition."""

    def __init__(self, public: Public, outbox: Outbox[MemberCounts]) -> None:
        self.outbox = outbox
        self.parts = ChangedParts("a server")
        self.public = public
        self.codec = codec(public.settings.message_bytes)
        self._run = _Run()
        self._remember_run = self.parts.single(RUN, _Run, self._restore_run)
        self._now = 0.0
        self._looked = False
        window = public.settings.window
        self.names = Names(self)
        self.announced = self.names.announced
        self.liveness = PartyLiveness(self.parts, public.parties, window.patience_seconds)
        self.means = ToldMeans(public, self.parts)
        make = Fit if public.settings.learning.estimator == "frank-wolfe" else Selection
        self.estimator: Estimator = make(public, self.parts, outbox.counts, self.means.has)
        self.partials = Partials(public, self.parts, outbox)
        proven = public.settings.federation.members is not None
        self._chains = PartyChains(self.parts, public.parties, outbox.notices, proven)
        # Manifests of a window that parties are to freeze, by party. Until layout 2 all parties had the same.
        self._manifests = ValueFragments(
            self.parts, MANIFEST, public.settings.message_bytes * len(public.parties)
        )
        if public.settings.serving.mode == "exact":
            outbox.notices.say("exact")

    @property
    def window(self) -> int:
        """Number of the latest window."""
        return self._run.window

    @property
    def model(self) -> int:
        """Version of the latest model, 0 before the first."""
        return self._run.window - (self._run.phase != GATHERING)

    @property
    def wake_at(self) -> float | None:
        timed = (self.liveness, self.partials, self.names)
        return earliest(*(one.wake_at for one in timed))

    @property
    def owed(self) -> bool:
        return self._run.phase != GATHERING

    @property
    def owing(self) -> Sequence[str]:
        return self.liveness.owing

    @property
    def trouble(self) -> str | None:
        """Always None: parties that do not answer are noticed because the server gets no further."""
        return None

    @property
    def awaited(self) -> str | None:
        rows, complete = self.public.settings.window.rows, self.announced.complete
        if self.window or complete >= rows:
            return self.partials.awaited
        lacking = "".join(
            f"; {party} lacks {count:,} that others have" for party, count in self.names.lacking
        )
        return (
            f"knows {complete:,} of {rows:,} entities that every party has announced (window.rows){lacking}"
        )

    def set_back(self, now: float) -> None:
        self.liveness.set_back(now)
        self.partials.set_back(now)
        self.names.set_back(now)

    def pass_time(self, now: float) -> None:
        self._now = now
        if not self._looked:
            # A damaged state is refused before metrics show it.
            self._looked = self.estimator.support >= 0
        away, again = self.liveness.pass_time(now)
        self.outbox.counts.timed_out_rounds += bool(away)
        for party in away:
            self.outbox.counts.missing_answers += 1
            patience = self.public.settings.window.patience_seconds
            text = f"{party!r} has not answered for {patience:g} s: window {self.window} continues without it"
            self.outbox.notices.say("away", text)
        for party in again:
            self.outbox.counts.repeated_asks += 1
            if self._run.phase == FREEZING:
                self.tell(party, "manifest", 0, self._manifest_of(party))
                if not self.names.anew.was_asked_in(party, self.window):
                    # Its entities may be of another run, and nobody has them.
                    self.names.ask(party, now)
            else:
                self._ask(party)
        self.names.pass_time(now)
        self._begin_window_if_full()
        self._go_on()
        self.partials.pass_time(now)
        self._look_at_names()

    def restore(self, key: bytes, value: bytes) -> None:
        self._looked = False
        self.parts.restore(key, value)

    def measure(self) -> Iterator[Measurement]:
        """The server's progress and results. All follow from names, times and releases."""
        yield ServerMetrics.window(self.window)
        yield ServerMetrics.phase(self._run.phase)
        yield ServerMetrics.iteration(self.estimator.iteration)
        yield ServerMetrics.support(self.estimator.support)
        yield ServerMetrics.l1_norm(self.estimator.l1_norm)
        yield ServerMetrics.fit_uplink_numbers(self.estimator.uplink_numbers + self.means.numbers)
        yield from self.announced.measure()
        yield from self.liveness.measure()
        yield from self.partials.measure()

    def take(self, channel: str, message: Any, now: float) -> None:
        assert isinstance(message, Message)
        self._now = now
        party = channel.partition("/")[2]
        if message.fingerprint != self.public.fingerprint:
            raise BadRecord("configuration", ANOTHER)
        if message.sender != party:
            raise BadRecord("forged", f"{message.sender!r} speaks where {party!r} is heard")
        if message.kind == "entities":
            if self.names.take(party, message, now):
                self.liveness.spoke(party)
                self._begin_window_if_full()
                self._look_at_names()
            else:
                self._repeated()
        elif message.kind == "partial":
            if not self.partials.take(party, message, self.model, now):
                self._repeated()
        elif message.kind in ("frozen", "answers", "chosen", "products"):
            self._take_answer(party, message)
        else:
            raise BadRecord("malformed", f"{message.kind!r} is not a message of a party")

    # ---- a window

    def _look_at_names(self) -> None:
        self.names.look(self._run.phase == GATHERING, self._now)

    def _restore_run(self, run: _Run) -> None:
        self._run = run

    def _begin_window_if_full(self) -> None:
        run, rows = self._run, self.public.settings.window.rows
        if run.phase != GATHERING or self.announced.complete < rows or self.names.anew.holds:
            return
        drawn = self.announced.draw(rows)
        rows_digest = digest_of_rows(list(drawn[self.public.parties[0]]))
        manifests = {party: manifest_content(numbers, rows_digest) for party, numbers in drawn.items()}
        # A party may have frozen later windows: those of another run, or that a stranger wrote.
        self._run = _Run(max(run.window, self.names.anew.furthest) + 1, FREEZING, rows_digest)
        self._remember_run(self._run)
        self._manifests.write(msgspec.msgpack.encode(manifests))
        self.means.begin()
        self.estimator.begin(self.window)
        self.liveness.begin("frozen", self._now)
        for party, content in manifests.items():
            self.tell(party, "manifest", 0, content)
        self.outbox.counts.windows += 1

    def begins_anew(self, party: str, message: Message) -> None:
        """A party that was asked announces anew. It has taken all that was said to it before it was asked."""
        after_manifest = self.names.anew.was_asked_in(party, self.window)
        if self._run.phase != FREEZING or not after_manifest or self.liveness.owes(party) != "frozen":
            return
        manifest = digest_of_question("manifest", 0, self._manifest_of(party))
        if (message.window, message.head) == (self.window, manifest):
            return
        text = (
            f"{party!r} cannot freeze window {self.window}: it does not have these entities, or no "
            "budget for them. They were announced in another run, or by somebody else. The window goes on "
            "without it"
        )
        self.outbox.notices.say("not_frozen", text)
        self.liveness.leave(party)
        self._go_on()

    def _give_up_window(self) -> None:
        """No party has frozen the window, and none will."""
        self._run.phase = GATHERING
        self._remember_run(self._run)
        self._manifests.clear()
        self.liveness.end()
        self.outbox.counts.given_up_windows += 1
        self._begin_window_if_full()

    def _manifest_of(self, party: str) -> bytes:
        content = self._manifests.content
        try:
            told = msgspec.msgpack.decode(content, type=dict[Name, bytes] | list[Any])
            return content if isinstance(told, list) else told[party]
        except (*UNDECODABLE, KeyError):
            raise BadRecord("malformed", f"state: no manifests of window {self.window}") from None

    def _take_answer(self, party: str, message: Message) -> None:
        run, kind, iteration = self._run, message.kind, message.iteration
        if message.window < run.window or (message.window == run.window and run.phase == GATHERING):
            self._repeated()
            return
        if message.window > run.window:
            raise BadRecord("implausible", f"{kind} of window {message.window}: nothing led to it")
        if self.liveness.judge(party, kind, iteration, message.content) == "repeated":
            self._repeated()
            return
        self._chains.check(party, message)
        if kind == "frozen":
            frozen: Frozen = read_content(message.content, Frozen)
            if frozen.manifest != run.manifest:
                raise BadRecord("another_manifest", f"{party!r} has frozen another window {run.window}")
            self.means.take(party, frozen.means, frozen.weight)
            if self.public.settings.learning.intercept and not frozen.means:
                text = (
                    f"{party!r} tells no means: its learning.intercept is false, or its release is an "
                    "earlier one"
                )
                self.outbox.notices.say("not_centred", text)
            self.outbox.counts.uplink_numbers += len(frozen.means) // 8
            self.outbox.counts.uplink_bytes += len(frozen.means)
        else:
            self.estimator.take(party, kind, iteration, message.content)
            self.outbox.counts.uplink_bytes += len(message.content)
        self._chains.hear(party, message)
        self.liveness.answered(party, kind, iteration, message.content)
        self._go_on()

    def _go_on(self) -> None:
        """Goes on as far as possible without another answer."""
        if self._run.phase == GATHERING or self.liveness.awaited:
            return
        if self._run.phase == FREEZING and not self.liveness.has_answers:
            self._give_up_window()
            return
        if self._run.phase == FREEZING:
            self._run.phase = FITTING
            self._remember_run(self._run)
            self._manifests.clear()
            self._ask_all()
        while not self.liveness.awaited:
            before = self.estimator.iteration
            calculation = self.estimator.settle()
            if calculation is not None:
                then = functools.partial(self._calculated, calculation.then)
                self.outbox.ask(calculation.function, calculation.content, then)
                return
            if self.estimator.over:
                self._end_window()
                return
            self._ask_all()
            if self.estimator.iteration == before and not self.liveness.awaited:
                raise BadRecord(
                    "malformed", f"state: nobody is left who could answer in window {self.window}"
                )

    def _calculated(self, then: Callable[[bytes], None], result: bytes) -> None:
        then(result)
        self._end_window()

    def _ask_all(self) -> None:
        """Asks the parties that are present. An absent one would spend its budget on an answer that comes too
        late."""
        for party in self.liveness.present:
            self._ask(party)

    def _ask(self, party: str) -> None:
        for question in self.estimator.questions(party):
            self.liveness.ask(party, question.answer, question.iteration, self._now)
            self.tell(party, question.kind, question.iteration, question.content)

    def _end_window(self) -> None:
        bounds, intercept = self.public.settings.bounds, self.means.intercept(self.estimator.weights)
        for party, own in self.estimator.weights.items():
            columns, weights = weights_of(own)
            self.tell(party, "model", 0, content_of(FittedModel(columns, weights)))
            active = [int(column) for column in own.nonzero()[0]]
            published = PublishedModel(
                party,
                self.window,
                active,
                own[active].tolist(),
                bounds.label_centre,
                bounds.label_bound,
                intercept,
            )
            self.outbox.publish("model", party, msgspec.json.encode(published))
        self._run.phase = GATHERING
        self._remember_run(self._run)
        self.liveness.end()
        self.partials.model_is(self.window, intercept, self.estimator.weights)
        self.outbox.counts.models += 1
        self._begin_window_if_full()
        self._look_at_names()

    # ---- sending

    def tell(self, party: str, kind: str, iteration: int, content: bytes) -> None:
        window = 0 if kind == "entities" else self.window
        message = Message(
            VERSION, self.public.fingerprint, SERVER_NAME, window, iteration, kind, 0, b"", content
        )
        self.outbox.send(f"asks/{party}", records_of(self.codec, message))

    def _repeated(self) -> None:
        self.outbox.counts.repeated_messages += 1
