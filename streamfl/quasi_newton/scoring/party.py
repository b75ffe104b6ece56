"""A party that scores with its latest model while it learns the next one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from streamfl.contract.measurement import Measurement
from streamfl.quasi_newton.messages import COORDINATOR_NAME
from streamfl.quasi_newton.metrics import ScoringMetrics
from streamfl.quasi_newton.training.party import PartyTask
from streamfl.quasi_newton.training.trained_model import TrainedModel
from streamfl.quasi_newton.training.training_progress import DECIDING, OPENING
from streamfl.records.labels import Label
from streamfl.records.samples import Sample
from streamfl.state.clock_guard import earliest

__all__ = ["Scoring", "ScoringParty"]


class Scoring:
    """The scoring of one partition: what guest and host share. Methods that only one of them needs do nothing
    here."""

    def __init__(self, party: PartyTask) -> None:
        self._party = party
        self._settings = party.settings
        self._counts = party.outbox.counts

    @property
    def wake_at(self) -> float | None:
        return None

    @property
    def owed(self) -> bool:
        raise NotImplementedError

    @property
    def owing(self) -> Sequence[str]:
        """The parties that still have to answer."""
        return ()

    @property
    def awaited(self) -> str | None:
        """What scores wait for, in words; None: nothing."""
        return None

    @property
    def trouble(self) -> str | None:
        return None

    def set_back(self, now: float) -> None:
        """Correct times after ``now``, because the clock was ahead."""

    def pass_time(self, now: float) -> None:
        raise NotImplementedError

    def measure(self) -> Iterator[Measurement]:
        yield ScoringMetrics.model_version(self._version)

    def came(self, name: str) -> None:
        """The table has an entity's columns."""

    def labelled(self, name: str) -> None:
        """The table has an entity's label."""

    def label_came(self, now: float) -> None:
        """A label came from the party's own topic, of any entity."""

    def went_on(self) -> None:
        """A message was taken, so there may be a new version of the model."""
        raise NotImplementedError

    @property
    def _version(self) -> int:
        """Version of the present model; 0 before there is one."""
        model = self._party.trained
        return 0 if model is None else model.version

    @property
    def _model(self) -> TrainedModel:
        model = self._party.trained
        assert model is not None
        return model


class ScoringParty(PartyTask):
    """A partition of guest or host with scoring. ``scoring``: the owner of the scores' state."""

    scoring: Scoring

    @property
    def wake_at(self) -> float | None:
        return earliest(super().wake_at, self.scoring.wake_at if self._scores else None)

    @property
    def owed(self) -> bool:
        return super().owed or (self._scores and self.scoring.owed)

    @property
    def owing(self) -> Sequence[str]:
        if not super().owed:
            return self.scoring.owing
        return [COORDINATOR_NAME] if self.progress.phase in (OPENING, DECIDING) else self.owing_parties()

    def owing_parties(self) -> Sequence[str]:
        """The parties whose messages an alignment or a round waits for."""
        raise NotImplementedError

    @property
    def awaited(self) -> str | None:
        return super().awaited or (self.scoring.awaited if self._scores else None)

    @property
    def trouble(self) -> str | None:
        return super().trouble or (self.scoring.trouble if self._scores else None)

    def set_back(self, now: float) -> None:
        super().set_back(now)
        self.scoring.set_back(now)

    def pass_time(self, now: float) -> None:
        super().pass_time(now)
        if self._scores:
            self.scoring.pass_time(now)

    def take(self, channel: str, message: Any, now: float) -> None:
        super().take(channel, message, now)
        if not self._scores:
            return
        if isinstance(message, Sample):
            self.scoring.came(message.client)
        else:
            self.scoring.went_on()
        if isinstance(message, Label):
            self.scoring.label_came(now)

    def measure(self) -> Iterator[Measurement]:
        yield from super().measure()
        if self._scores:
            yield from self.scoring.measure()

    @property
    def _scores(self) -> bool:
        return self.settings.scoring.enabled
