"""A party: it freezes windows of its rows, charges their entities, and answers what the server asks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord, Headers, Measurement
from streamfl.dp_frank_wolfe.learning.means import centred, released_means
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.messages import (
    ANOTHER,
    LONGEST_ENTITY,
    SERVER_NAME,
    Entities,
    FittedModel,
    Frozen,
    Manifest,
    Message,
    codec,
    content_of,
    read_content,
    records_of,
)
from streamfl.dp_frank_wolfe.metrics import MemberCounts, PartyMetrics
from streamfl.dp_frank_wolfe.party.announcing import Announcing
from streamfl.dp_frank_wolfe.party.answers import PartyAnswers
from streamfl.dp_frank_wolfe.party.frozen_window import FrozenWindow
from streamfl.dp_frank_wolfe.party.given import PartyGiven
from streamfl.dp_frank_wolfe.party.manifest import digest_of_rows, is_of_waiting, rows_of
from streamfl.dp_frank_wolfe.party.progress import FITTING, WAITING, PartyProgress
from streamfl.dp_frank_wolfe.party.serving import NoServing, PartyServing
from streamfl.dp_frank_wolfe.party.table import PartyTable
from streamfl.dp_frank_wolfe.party.window import whole_label, whole_row
from streamfl.dp_frank_wolfe.privacy.ledger import PartyLedger, digest_of_question
from streamfl.dp_frank_wolfe.state import LEDGER_STATE, MODEL, PROGRESS
from streamfl.encoding.wire import VERSION
from streamfl.records.labels import Label
from streamfl.records.samples import Sample
from streamfl.roles.partitioned_role import Outbox
from streamfl.roles.task_role import PartsTask
from streamfl.state.changelog import ChangedParts
from streamfl.state.clock_guard import earliest
from streamfl.state.table import StateRow
from streamfl.state.value_fragments import ValueFragments

__all__ = ["PartyTask"]

# Windows from which a party follows its server back. Fewer may be manifests that were replayed late.
MOST_AHEAD = 100


class PartyTask(PartsTask):
    """A party's partition."""

    def __init__(self, public: Public, given: PartyGiven, outbox: Outbox[MemberCounts]) -> None:
        self.public = public
        self.given = given
        self.outbox = outbox
        self.settings = settings = public.settings
        self.own = settings.required_party()
        columns = settings.own_columns
        self.parts = ChangedParts()
        self.ledger = PartyLedger(public, given, outbox)
        self.table = PartyTable(self.parts, columns, settings.window.limit, outbox.counts)
        self.announcing = Announcing(self)
        self.frozen = FrozenWindow(self.parts, settings.window.rows, columns)
        self.progress = PartyProgress()
        self._remember_progress = self.parts.single(PROGRESS, PartyProgress, self._restore_progress)
        self.answers = PartyAnswers(public, given, self.parts, self.frozen)
        self.model = PartyWeights(self.parts, columns)
        self.serving: PartyServing = NoServing()
        self._codec = codec(settings.message_bytes)
        self._looked = False
        self._now = 0.0

    # ---- what the runtime asks

    @property
    def wake_at(self) -> float | None:
        announces = self.announcing.is_due and self.trouble is None
        return earliest(self._now if announces else None, self.serving.wake_at)

    @property
    def owed(self) -> bool:
        return self.progress.phase == FITTING

    @property
    def owing(self) -> Sequence[str]:
        return [SERVER_NAME]

    @property
    def trouble(self) -> str | None:
        return self.ledger.trouble

    @property
    def awaited(self) -> str | None:
        """None: only the server knows how many entities every party has."""
        return None

    def set_back(self, now: float) -> None:
        self._now = min(self._now, now)

    def pass_time(self, now: float) -> None:
        self._now = now
        self._look()
        # A party in trouble can release nothing. A window with its entities would be lost to all parties.
        if self.trouble is None:
            self.announcing.announce()
        self.serving.pass_time(now)

    def restore(self, key: bytes, value: bytes) -> None:
        (self.ledger.parts if LEDGER_STATE.has(key) else self.parts).restore(key, value)

    def measure(self) -> Iterator[Measurement]:
        progress = self.progress
        yield PartyMetrics.window(progress.window)
        yield PartyMetrics.phase(progress.phase)
        yield PartyMetrics.iteration(progress.iteration)
        yield from self.table.measure()
        yield from self.ledger.measure()
        yield from self.serving.measure()

    def take(self, channel: str, message: Any, now: float) -> None:
        self._now = now
        # A message may come before the first tick.
        self._look()
        if isinstance(message, Sample):
            self._take_sample(message)
        elif isinstance(message, Label):
            self._take_label(message)
        else:
            assert isinstance(message, Message)
            self._take_message(message)

    def changed_ledger(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Changes for the ledger's own changelog since the last call."""
        yield from self.ledger.changed_state()
        self.serving.remembered()

    def _look(self) -> None:
        """Checks the ledger once, after all state is restored."""
        if not self._looked:
            self._looked = True
            self.ledger.look(self.progress.link)

    # ---- rows

    def _take_sample(self, sample: Sample) -> None:
        entity = _checked_name(sample.client)
        columns = whole_row(sample.features, self.given.bounds)
        self.outbox.counts.samples += 1
        if self._has_budget(entity):
            self.table.put_columns(entity, columns)
        self.serving.take_row(entity, columns, self._now)

    def _take_label(self, label: Label) -> None:
        entity = _checked_name(label.client)
        self.outbox.counts.labels += 1
        if self._has_budget(entity):
            self.table.put_label(entity, whole_label(label.label, self.given.label_bounds))

    def _has_budget(self, entity: str) -> bool:
        waiting = len(self.table)
        # The entity may be one of those that wait, which matters where the ledger is nearly full.
        if self.ledger.allows(entity, waiting) or (
            entity in self.table and self.ledger.allows(entity, waiting - 1)
        ):
            return True
        self.outbox.counts.spent_entities += 1
        return False

    def send_names(self, names: list[str], first: int) -> None:
        """Announces entities. first: the first one's number; the others' follow, where it is not 0."""
        self.progress.announced += 1
        content = content_of(Entities(names, first))
        if names:
            self.send(0, self.progress.announced, "entities", content)
        else:
            # It begins to announce anew. The server sees by this which manifest was taken last.
            window = max(self.progress.window, self.ledger.window)
            self.send(window, self.progress.announced, "entities", content, 0, self.progress.manifest)
        self._remember()

    # ---- the server

    def _take_message(self, message: Message) -> None:
        if message.fingerprint != self.public.fingerprint:
            raise BadRecord("configuration", ANOTHER)
        if message.sender != SERVER_NAME:
            raise BadRecord("forged", f"{message.sender!r} speaks where the server is heard")
        heard = digest_of_question(message.kind, message.iteration, message.content)
        if message.kind == "manifest":
            self._take_manifest(message, heard)
        elif message.kind == "entities":
            self.announcing.take_question(message, heard)
        elif message.kind == "model":
            self._take_model(message, heard)
        elif message.kind in self.answers.kinds:
            self._take_ask(message, heard)
        else:
            raise BadRecord("malformed", f"{message.kind!r} is not a message from a server to this party")

    def _take_manifest(self, message: Message, heard: bytes) -> None:
        progress, window, rows = self.progress, message.window, self.settings.window.rows
        last = max(progress.window, self.ledger.window)
        if window <= last:
            if window > progress.window:
                # The ledger has this window, and the state does not.
                self.ledger.check_follows(progress.link)
            if not self._was_misled(message):
                self._repeated(window == progress.window and heard != progress.manifest, "manifest")
                return
        names = rows_of(read_content(message.content, Manifest), rows, self.table.numbered)
        if unknown := sum(not self.table.was_announced(name) for name in names):
            raise BadRecord(
                "implausible", f"{unknown} entities of window {window} were not announced by this party"
            )
        if (refusal := self.ledger.refusal(names)) is not None:
            raise BadRecord("budget", f"entities of window {window} have no {refusal} left for a fit")
        frozen = window_of_estimator = self.table.window(names)
        means, weight = np.zeros(0, dtype=np.int64), 1
        if self.settings.learning.intercept:
            plan = self.public.means_plan(self.own)
            means, weight = released_means(frozen, plan, self.given.place(self.settings, window)), plan.weight
            window_of_estimator = centred(frozen, plan.means(means, rows))
        content = content_of(Frozen(digest_of_rows(names), means.astype("<i8").tobytes(), weight))

        def then(link: int, head: bytes) -> None:
            self.ledger.charge_fit(names)
            self.frozen.freeze(window_of_estimator)
            self.table.forget(names)
            self.answers.begin(window, centred=bool(len(means)))
            self.progress = PartyProgress(window, FITTING, 0, progress.announced, link, heard)
            self._remember()
            self.outbox.counts.windows += 1
            self.outbox.counts.uplink_numbers += len(means)
            self.send(window, 0, "frozen", content, link, head)

        self.ledger.release(window, 0, "frozen", heard, content, frozen.digest, then)

    def _was_misled(self, message: Message) -> bool:
        """Whether the latest window cannot have been the server's. Where members have no keys, a stranger can
        write a manifest of any window, and the party would pass over all windows before that one."""
        latest, window = self.progress.window, message.window
        if self.settings.federation.members is not None or latest - window <= MOST_AHEAD:
            return False
        manifest = read_content(message.content, Manifest)
        if not is_of_waiting(manifest, self.settings.window.rows, self.table.numbered):
            return False
        told = f"window {latest} was frozen, and the server is at window {window}: the party follows it back"
        self.outbox.notices.say("window_ahead", told)
        return True

    def _take_ask(self, message: Message, heard: bytes) -> None:
        progress, place = self.progress, self.answers.place(message)
        if message.window < progress.window or (
            message.window == progress.window and progress.phase == WAITING
        ):
            self._repeated(False, message.kind)
            return
        if message.window > progress.window:
            raise BadRecord(
                "implausible",
                f"{message.kind} of window {message.window}: window {progress.window} is the latest",
            )
        if place < progress.iteration:
            self._repeated(place == progress.iteration - 1 and heard != progress.heard, message.kind)
            return
        self.ledger.check_follows(progress.link)
        answer = self.answers.answer(message)

        def then(link: int, head: bytes) -> None:
            answer.keep()
            self.progress = PartyProgress(
                progress.window, FITTING, place + 1, progress.announced, link, progress.manifest, heard
            )
            self._remember()
            self.outbox.counts.iterations += 1
            self.outbox.counts.shown_columns += answer.shown
            self.outbox.counts.uplink_numbers += answer.numbers
            self.send(message.window, message.iteration, answer.kind, answer.content, link, head)

        rows = self.frozen.window.digest
        self.ledger.release(message.window, message.iteration, answer.kind, heard, answer.content, rows, then)

    def _take_model(self, message: Message, heard: bytes) -> None:
        progress = self.progress
        if message.window < progress.window or (
            message.window == progress.window and progress.phase == WAITING
        ):
            self._repeated(message.window == progress.window and heard != progress.heard, "model")
            return
        if message.window > progress.window:
            raise BadRecord(
                "implausible", f"a model of window {message.window}: window {progress.window} is the latest"
            )
        model = read_content(message.content, FittedModel)
        weights = self.answers.weights(model.columns, model.weights, self.public.model_radius(self.own))
        self.serving.take_model(message.window, weights)
        self.model.keep(message.window, weights)
        self.frozen.clear()
        self.answers.end()
        self.progress = PartyProgress(
            progress.window,
            WAITING,
            progress.iteration,
            progress.announced,
            progress.link,
            progress.manifest,
            heard,
        )
        self._remember()
        self.outbox.counts.models += 1

    def _repeated(self, differs: bool, kind: str) -> None:
        """Counts a message that came again or too late. Raises BadRecord if it differs from the first one."""
        if differs:
            raise BadRecord(
                "another_ask",
                f"another {kind} than was heard at that place before: one release is all there is",
            )
        self.outbox.counts.repeated_messages += 1

    def send(
        self,
        window: int,
        iteration: int,
        kind: str,
        content: bytes,
        link: int = 0,
        head: bytes = b"",
        headers: Headers = (),
    ) -> None:
        """Sends the server a message. link, head: of the ledger, for a release with noise."""
        message = Message(
            VERSION, self.public.fingerprint, self.own, window, iteration, kind, link, head, content
        )
        self.outbox.send("releases", records_of(self._codec, message), headers)

    def _remember(self) -> None:
        self._remember_progress(self.progress)

    def _restore_progress(self, progress: PartyProgress) -> None:
        self.progress = progress


class PartyWeights:
    """The party's own weights of a fit. Remembers the version, then 64-bit floats.

    row: of the latest fit, or of another.
    """

    def __init__(self, parts: ChangedParts, columns: int, row: StateRow = MODEL) -> None:
        self._columns = columns
        self._fragments = ValueFragments(parts, row, 8 * (columns + 1))

    @property
    def version(self) -> int:
        """The window that the model was fitted on. 0: there is no model."""
        return int.from_bytes(self._fragments.content[:8], "little")

    @property
    def weights(self) -> NDArray[np.float64]:
        """(columns,). Zeros where there is no model."""
        content = self._fragments.content[8:]
        if not content:
            return np.zeros(self._columns)
        if len(content) != 8 * self._columns:
            raise BadRecord("malformed", f"a model of {len(content)} bytes in state, not {8 * self._columns}")
        return np.frombuffer(content, "<f8").astype(np.float64)

    def keep(self, version: int, weights: NDArray[np.float64]) -> None:
        """Replaces the stored model."""
        self._fragments.write(version.to_bytes(8, "little") + weights.astype("<f8").tobytes())


def _checked_name(name: str) -> str:
    if len(name.encode()) > LONGEST_ENTITY:
        raise BadRecord(
            "malformed",
            f"an entity's name of {len(name.encode())} bytes: at most {LONGEST_ENTITY} are accepted",
        )
    return name
