"""A party's side of serving: it sends its part of a prediction for every entity whose record comes while
there is a model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import Measurement
from streamfl.dp_frank_wolfe.messages import Partial, content_of
from streamfl.dp_frank_wolfe.metrics import PartyMetrics
from streamfl.dp_frank_wolfe.party.role import PartyTask, PartyWeights
from streamfl.dp_frank_wolfe.privacy.ledger import PREDICTIONS as PREDICTIONS_LANE
from streamfl.dp_frank_wolfe.serving.partials import PartialPlan, largest_partial
from streamfl.dp_frank_wolfe.state import BEFORE, DUE, PREDICTIONS, TIMES
from streamfl.encoding.changelog_checks import check_name, check_number, check_within
from streamfl.encoding.wire import Count, Name
from streamfl.privacy.anchor import RESTORE
from streamfl.privacy.release_bits import Release, release_bits
from streamfl.records.pending_headers import PendingHeaders

__all__ = ["Serving"]

# Most parts sent in a tick. The others wait for the next one, so that no step is too large to be committed.
TOLD_AT_ONCE = 1_000

BUDGET_IS_SPENT = "its entity has no budget for another one (serving.predictions)"
LIMIT_WAITS = "as many parts of predictions as window.limit wait to be sent"


class _Due(msgspec.Struct, array_like=True, frozen=True):
    """A part to be sent.

    model: its version.
    value: with its noise.
    rows: digest of what it is computed from, which the ledger's link binds.
    before: the part with the version before, where it is sent.
    """

    entity: Name
    model: Count
    value: float
    rows: Annotated[bytes, msgspec.Meta(max_length=32)]
    before: float | None = None


class Serving:
    """The owner of parts to be sent, and of how often each entity was predicted.

    A part is computed and charged when the record comes. It is sent at the first tick after that is
    remembered. So the parts come in the same order with the same content if the work is done again, whatever
    was read of the server's topic meanwhile.

    Parties change to another model at different moments of their own records. Without noise each part is sent
    with the version before as well, so that parties that are a version apart have one in common. With noise
    that would be a second release, which the entity would pay for with another of its predictions.

    task: of the party.
    """

    def __init__(self, task: PartyTask) -> None:
        self._task = task
        settings = task.settings
        self._private = settings.serving.mode == "private"
        self._most = settings.serving.predictions if self._private else math.inf
        self._noise_cost = task.public.prediction_cost(task.own)
        self._cost = self._noise_cost if settings.privacy.is_private else math.inf
        self._limit = settings.window.limit
        # In the order of their numbers, which is the order in which they were written.
        self._due: dict[int, _Due] = {}
        self._kept_due = task.parts.named(DUE, check_number, _Due, self._restore_due)
        self._remember_latest = task.parts.single(PREDICTIONS, int, self._restore_latest)
        self._kept_times = task.parts.named(TIMES, check_name, int, self._restore_times)
        self._latest = 0
        # Parts with a number up to this are remembered.
        self._safe = 0
        # Headers of the parts to be sent, by their number.
        self._pending_headers = PendingHeaders(
            task.parts, settings.predictions.carried(by_party=True), self._limit
        )
        self._times: dict[str, int] = {}
        self._plan: tuple[int, PartialPlan, PartialPlan | None] | None = None
        # Not used with noise.
        self._before = PartyWeights(task.parts, settings.own_columns, BEFORE)
        if self._private:
            task.ledger.waiting_predictions = lambda: len(self._waiting())
        else:
            task.outbox.notices.say("exact")

    @property
    def wake_at(self) -> float | None:
        """At once, where something is to be sent."""
        return 0.0 if self._tellable(1) else None

    def take_row(self, entity: str, columns: NDArray[np.int16], now: float) -> None:
        """Takes a record. Whether a part is sent follows from names, times and releases, never from the
        values."""
        version, counts = self._task.model.version, self._task.outbox.counts
        if not version:
            counts.early_records += 1
            return
        full = len(self._due) >= self._limit
        if full or not self._charge(entity):
            counts.unpredicted_entities += 1
            self._task.outbox.notices.say(
                "unpredicted", f"a record gets no prediction: {LIMIT_WAITS if full else BUDGET_IS_SPENT}"
            )
            return
        self._latest += 1
        self._due[self._latest] = _Due(entity, version, *self._made(version, entity, columns))
        self._kept_due.remember(self._latest, self._due[self._latest])
        self._remember_latest(self._latest)
        if (record := self._task.outbox.record) is not None:
            self._pending_headers.came(str(self._latest), record)

    def take_model(self, version: int, weights: NDArray[np.float64]) -> None:
        """Predicts records that come from now on with this model."""
        known = self._task.model
        if known.version and not self._private:
            self._before.keep(known.version, known.weights)
        self._plan = None

    def pass_time(self, now: float) -> None:
        ledger = self._task.ledger
        if self._private and ledger.trouble is None and ledger.fits_ahead and self._waiting(1):
            text = (
                f"the ledger file has {ledger.fits_ahead} releases for fits that the state has not: parts of "
                "predictions are sent once the server's messages have repeated these releases. If none come, "
                f"{RESTORE}"
            )
            self._task.outbox.notices.say("fits_ahead", text)
        # If the state was rolled back, the server has received these numbers already.
        if not self._tellable(1) or not self._task.ledger.follows(self._task.progress.link):
            return
        for number in self._tellable(TOLD_AT_ONCE):
            due = self._due[number]
            content = content_of(Partial(due.entity, due.model, due.value, due.before))
            if self._private:
                then = partial(self._tell, number, content)
                self._task.ledger.release(
                    0, number, "partial", b"", content, due.rows, then, PREDICTIONS_LANE
                )
            else:
                self._tell(number, content, 0, b"")

    def remembered(self) -> None:
        self._safe = self._latest

    def _restore_latest(self, latest: int) -> None:
        self._latest = self._safe = msgspec.convert(latest, Count)

    def _restore_times(self, entity: str, times: int) -> None:
        self._times[entity] = msgspec.convert(times, Count)

    def _restore_due(self, number: int, due: _Due) -> None:
        most = largest_partial(self._task.public.model_radius(self._task.own), self._noise_cost)
        parts = [due.value, *([] if due.before is None else [due.before])]
        check_within(parts, -most, most, "a part of a prediction")
        self._due[number] = due

    def measure(self) -> Iterator[Measurement]:
        yield PartyMetrics.waiting_partials(len(self._due))

    def _tellable(self, most: int) -> list[int]:
        """The first ``most`` parts that may be sent."""
        if self._task.trouble is not None or (self._private and not self._task.ledger.may_predict):
            return []
        return self._waiting(most)

    def _waiting(self, most: int | None = None) -> list[int]:
        """The first ``most`` parts that are remembered. None: all."""
        return list(islice((number for number in self._due if number <= self._safe), most))

    def _charge(self, entity: str) -> bool:
        """Charges the entity for a prediction. False if it may not be predicted."""
        if not self._private:
            self._task.ledger.tell_exactly()
            return True
        times, spend = self._times.get(entity, 0), self._task.ledger.spend
        if times >= self._most or spend.refusal(entity, self._cost) is not None:
            return False
        spend.spend(entity, self._cost)
        self._times[entity] = times + 1
        self._kept_times.remember(entity, times + 1)
        return True

    def _made(
        self, version: int, entity: str, columns: NDArray[np.int16]
    ) -> tuple[float, bytes, float | None]:
        """The part, a digest of what it is computed from, and the part with the version before where it is
        sent."""
        if self._plan is None or self._plan[0] != version:
            # After a party was away for a whole window, no other party has its version before.
            follows = self._before.version == version - 1 > 0
            before = PartialPlan.of(self._before.weights, self._noise_cost) if follows else None
            self._plan = version, PartialPlan.of(self._task.model.weights, self._noise_cost), before
        _, plan, before = self._plan
        exact = plan.exact(columns)
        # The same row under the same model has the same noise, so sending it again reveals nothing more.
        content = columns.astype("<i2").tobytes() + plan.weights.astype("<i8").tobytes()
        rows = hashlib.sha256(b"streamfl partial/1" + content).digest()
        if plan.noise is None:
            told_before = None if before is None else before.told(before.exact(columns), b"")
            return plan.told(exact, b""), rows, told_before
        given = (plan.noise.variance, plan.noise.unit, plan.bits, entity)
        place = self._task.given.place(self._task.settings, version)
        release = Release(place.ledger, place.federation, place.party, version, 0, "prediction", given, rows)
        return plan.told(exact, release_bits(place.secret, release, 1)), rows, None

    def _tell(self, number: int, content: bytes, link: int, head: bytes) -> None:
        del self._due[number]
        self._kept_due.forget(number)
        self._task.outbox.counts.partials += 1
        self._task.send(0, number, "partial", content, link, head, self._pending_headers.of(str(number)))
        self._pending_headers.forget(str(number))
