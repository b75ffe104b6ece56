"""The server's side of serving: it adds up the parties' parts of a prediction, and publishes the sum."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord, Measurement
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.messages import Message, Partial, Prediction, read_content
from streamfl.dp_frank_wolfe.metrics import MemberCounts, ServerMetrics
from streamfl.dp_frank_wolfe.server.progress_timer import ProgressTimer
from streamfl.dp_frank_wolfe.server.received_messages import ReceivedMessages
from streamfl.dp_frank_wolfe.serving.partials import largest_partial
from streamfl.dp_frank_wolfe.state import INTERCEPT, PARTIAL, PARTIALS
from streamfl.encoding.changelog_checks import Time, check_name, check_number, check_within
from streamfl.encoding.wire import Count, Name
from streamfl.records.predictions import prediction_encoder
from streamfl.roles.partitioned_role import Outbox
from streamfl.state.changelog import ChangedParts
from streamfl.state.clock_guard import overdue, set_back

__all__ = ["Partials"]

# Seconds that a part waits for the others': the parties' records of an entity may come hours apart.
PART_SECONDS = 86_400.0
# A party that is a model behind the server may send a part with the model before its own.
MODELS_KEPT = 3


class _Part(msgspec.Struct, array_like=True, frozen=True):
    """model: version. value: with it. before: with the version before, None where it was not sent."""

    model: Count
    value: float
    before: float | None = None

    def of(self, model: int) -> float:
        """The part with this version."""
        value = self.value if model == self.model else self.before
        assert value is not None
        return value


class _Waiting(msgspec.Struct, array_like=True):
    """since: when the latest part came. parts: by party."""

    since: Time
    parts: dict[Name, _Part]


class Partials:
    """The owner of parts that wait for others'. The server publishes neither one party's part alone, nor a
    sum over two models.

    A prediction uses the newest model that all of its parts were sent with.
    """

    def __init__(self, public: Public, parts: ChangedParts, outbox: Outbox[MemberCounts]) -> None:
        self._public = public
        self._received = ReceivedMessages(parts, PARTIALS, public.parties, "parts of predictions")
        self._kept_waiting = parts.named(PARTIAL, bytes.decode, _Waiting, self._restore_waiting)
        self._kept_intercepts = parts.named(INTERCEPT, check_number, float, self._restore_intercept)
        self._outbox = outbox
        self._limit = public.settings.window.limit
        settings = public.settings
        self._encode = prediction_encoder(settings.predictions, settings.predictions_topic, Prediction)
        self._carry = settings.predictions.carried(by_party=False)
        # By model of the first part and entity, in the order in which their latest parts came.
        self._waiting: dict[tuple[int, str], _Waiting] = {}
        # Intercepts by version, of the models that parts may still use.
        self._intercepts: dict[int, float] = {}
        self._progress_timer = ProgressTimer(settings.window.patience_seconds)

    @property
    def wake_at(self) -> float | None:
        if not self._waiting:
            return None
        expires_at = next(iter(self._waiting.values())).since + PART_SECONDS
        return min(expires_at, self._progress_timer.wake_at or expires_at)

    @property
    def awaited(self) -> str | None:
        """A sentence on what predictions wait for, once none was made for a patience; None: nothing."""
        if not self._progress_timer.is_told or not self._waiting:
            return None
        # Not of all: this is asked in each step.
        first = next(iter(self._waiting.values())).parts
        lacking = ", ".join(party for party in self._public.parties if party not in first)
        return f"{len(self._waiting):,} predictions wait for parts of parties, the oldest for {lacking}"

    def take(self, party: str, message: Message, model: int, now: float) -> bool:
        """Takes a party's part. False if it came before. Raises BadRecord, before anything changes, if it is
        wrong.

        model: version of the latest model.
        """
        if self._public.settings.serving.mode == "off":
            raise BadRecord("configuration", 'a part of a prediction, and serving.mode = "off"')
        partial: Partial = read_content(message.content, Partial)
        number = message.iteration
        if not self._received.is_new(party, number):
            return False
        has_before = partial.before is not None
        may_have = partial.model > 1 and self._public.settings.serving.mode == "exact"
        if not 0 < partial.model <= model or (has_before and not may_have):
            raise BadRecord(
                "implausible", f"part {number} of {party!r}, of model {partial.model}: nothing led to it"
            )
        most = largest_partial(self._public.model_radius(party), self._public.prediction_cost(party))
        part = _Part(partial.model, partial.value, partial.before)
        check_within(
            [one for one in (part.value, part.before) if one is not None],
            -most,
            most,
            "a part of a prediction",
        )
        self._received.take(party, number)
        place = self._place(party, partial.entity, part)
        if place is None or part.model <= model - MODELS_KEPT:
            self._outbox.counts.expired_predictions += 1
            return True
        known = self._waiting.pop(place, None)
        parts = {} if known is None else known.parts
        # If an entity's record came twice at a party, the first part counts.
        waiting = _Waiting(now, {party: part, **parts})
        if len(waiting.parts) == len(self._public.parties):
            self._publish(partial.entity, waiting.parts)
            if known is not None:
                self._kept_waiting.forget(_key(place))
        else:
            self._waiting[place] = waiting
            self._kept_waiting.remember(_key(place), waiting)
            if len(self._waiting) > self._limit:
                self._expire(next(iter(self._waiting)))
        self._see(now)
        return True

    def _see(self, now: float) -> None:
        self._progress_timer.see(bool(self._waiting), self._outbox.counts.predictions, now)

    def model_is(self, version: int, intercept: float, weights: Mapping[str, NDArray[np.float64]]) -> None:
        """Takes a new model. Parts with older ones may be on their way. version, intercept: the model's, in
        label bounds. weights: by party."""
        self._say_if_noisy(version, self._public.prediction_noise(weights))
        if self._public.settings.serving.mode != "off":
            self._intercepts[version] = intercept
            self._kept_intercepts.remember(version, intercept)
        # A part with the oldest model that is kept may lead to a prediction with the version before.
        for old in [old for old in self._intercepts if old < version - MODELS_KEPT]:
            del self._intercepts[old]
            self._kept_intercepts.forget(old)
        for place in [place for place in self._waiting if place[0] <= version - MODELS_KEPT]:
            self._expire(place)

    def _say_if_noisy(self, version: int, noise: float) -> None:
        bounds = self._public.settings.bounds
        if noise > bounds.label_bound:
            text = (
                f"the noise in a prediction with model {version} has a deviation of {noise:.4g}, and labels "
                f"lie within {bounds.label_bound:g} of {bounds.label_centre:g}"
            )
            self._outbox.notices.say("noisy_predictions", text)

    def pass_time(self, now: float) -> None:
        for place in overdue(self._waiting, PART_SECONDS, now):
            self._expire(place)
        self._see(now)
        if self._progress_timer.is_due(now):
            patience = self._public.settings.window.patience_seconds
            text = f"no prediction was made for {patience:g} s, and {self.awaited}"
            self._outbox.notices.say("lacking_parts", text)

    def set_back(self, now: float) -> None:
        self._progress_timer.set_back(now)
        for place in set_back(self._waiting, now):
            self._kept_waiting.remember(_key(place), self._waiting[place])

    def _restore_intercept(self, version: int, found: float) -> None:
        most = 1 + self._public.settings.learning.radius
        check_within([found], -most * 1.01, most * 1.01, "an intercept")
        self._intercepts[version] = found

    def _restore_waiting(self, name: str, waiting: _Waiting) -> None:
        version, _, entity = name.encode().partition(b"/")
        place = check_number(version), check_name(entity)
        if not set(waiting.parts) < set(self._public.parties):
            raise BadRecord(
                "malformed", f"state {name[:60]!r} has parts of a prediction that are not of the parties"
            )
        values = [
            value
            for part in waiting.parts.values()
            for value in (part.value, part.before)
            if value is not None
        ]
        check_within(values, -1e300, 1e300, "a part of a prediction")
        if _common(waiting.parts.values()) is None:
            raise BadRecord("malformed", f"state {name[:60]!r} has parts that have no model in common")
        self._waiting[place] = waiting

    def measure(self) -> Iterator[Measurement]:
        if self._public.settings.serving.mode != "off":
            yield ServerMetrics.waiting_predictions(len(self._waiting))

    def _place(self, party: str, entity: str, part: _Part) -> tuple[int, str] | None:
        """Where a part belongs: to parts that wait for it, the older first, or to a new place. None if
        neither is possible."""
        for model in (part.model - 1, part.model, part.model + 1):
            known = self._waiting.get((model, entity))
            if (
                known is not None
                and party not in known.parts
                and _common([*known.parts.values(), part]) is not None
            ):
                return model, entity
        own = self._waiting.get((part.model, entity))
        return (part.model, entity) if own is None or party in own.parts else None

    def _publish(self, entity: str, parts: Mapping[str, _Part]) -> None:
        settings, model = self._public.settings, _common(parts.values())
        assert model is not None
        # In the order of parties, not of arrival: a sum of floats depends on the order.
        own = (parts[party].of(model) for party in self._public.parties)
        # A model of the release before has no intercept.
        total = math.fsum([self._intercepts.get(model, 0.0), *own])
        prediction = settings.bounds.label_centre + settings.bounds.label_bound * total
        covered = settings.serving.mode == "private" and settings.privacy.is_private
        content = self._encode(Prediction(entity, prediction, model, covered))
        # Headers of the part that completes it: the parties' records of an entity may come hours apart.
        headers = () if self._outbox.record is None else self._carry(self._outbox.record)
        self._outbox.publish("predictions", entity, content, headers)
        self._outbox.counts.predictions += 1

    def _expire(self, place: tuple[int, str]) -> None:
        del self._waiting[place]
        self._kept_waiting.forget(_key(place))
        self._outbox.counts.expired_predictions += 1


def _common(parts: Collection[_Part]) -> int | None:
    """The newest model that all parts were sent with. None if there is none."""
    oldest, newest = min(part.model for part in parts), max(part.model for part in parts)
    behind = all(part.model == oldest or part.before is not None for part in parts)
    return oldest if newest == oldest or (newest == oldest + 1 and behind) else None


def _key(place: tuple[int, str]) -> str:
    return f"{place[0]}/{place[1]}"
