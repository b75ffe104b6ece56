"""Watches the server's model at a client: whether it can be used, and whether the server owes a new
version."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from streamfl.contract.role import BadRecord, Measurement
from streamfl.pofmkl.client.model import ModelTable
from streamfl.pofmkl.client.settings_match import ServerSettingsCheck
from streamfl.pofmkl.learning.section import LearningSection
from streamfl.pofmkl.messages import KernelParameters, PublishedSettings, ShardVersion, SignedVersion
from streamfl.pofmkl.metrics import UplinkMetrics
from streamfl.roles.reply_deadline import ReplyDeadline

__all__ = ["ModelWatch"]

# Seconds, and rounds that time out, without a new model after which a server that owes one counts as silent.
SHORTEST_PATIENCE, ROUNDS_OF_PATIENCE = 10.0, 3
NO_MODEL = (
    "no server answers: updates are sent, but no model newer than version {} has come for {:g} s. Start the "
    "pofmkl-server, or check what its log says about this client's updates"
)


class ModelWatch:
    """Applies the model's records to its table, and watches whether the model is usable and new versions
    come.

    table: the model.
    settings_check: checks whether the model is made with this client's settings.
    """

    def __init__(
        self, table: ModelTable, settings_check: ServerSettingsCheck, learning: LearningSection
    ) -> None:
        self._table = table
        self.settings_check = settings_check
        self._lockstep = learning.lockstep
        self._reply_deadline = ReplyDeadline(
            max(SHORTEST_PATIENCE, ROUNDS_OF_PATIENCE * learning.round_timeout_seconds)
        )
        self._versions = table.versions
        self._sent = 0.0
        # Uploads sent when the model last changed.
        self._answered = 0.0

    @property
    def wake_at(self) -> float | None:
        return self._reply_deadline.wake_at

    @property
    def trouble(self) -> str | None:
        """Why the model is not in use as it should be; None if it is."""
        if self._table.trouble is not None:
            return f"the published model cannot be used: {self._table.trouble}"
        if not self._lockstep and any(self._table.lockstep):
            return (
                'learning.staleness = "lockstep" at the server but not here: most updates from here come too '
                "late and are "
                "ignored; set the same at both"
            )
        return (
            NO_MODEL.format(max(self._table.versions), self._reply_deadline.patience)
            if self._reply_deadline.overdue
            else None
        )

    def hear(
        self, message: KernelParameters | ShardVersion | SignedVersion | PublishedSettings, shard: int
    ) -> None:
        """Take a record of the model's topic; BadRecord if it does not fit."""
        if isinstance(message, PublishedSettings):
            self.settings_check.told(message.values)
            return
        try:
            self._table.apply(message, shard)
        except BadRecord as error:
            if error.reason == "configuration":
                self.settings_check.refused(shard, error.text)
            raise
        if not isinstance(message, KernelParameters):
            self.settings_check.fits(shard)

    def look(
        self, sent: float, waiting: bool, wait_for_model: Callable[[], bool], now: float, *, tick: bool
    ) -> None:
        """Note what the server owes: a new version after updates, and for clients that wait for one.

        sent: uploads sent so far.
        waiting: whether samples or labels wait to be learnt.
        wait_for_model: whether any of these wait for the model and not for a byte budget. Called only when
        needed.
        """
        deadline = self._reply_deadline
        if self._table.versions != self._versions:
            deadline.answered()
            self._versions, self._answered = self._table.versions, sent
        # A single update may change nothing, such as one that came twice. Continued updates change something.
        if sent > self._sent or waiting:
            deadline.asked(now)
        self._sent = sent
        if tick:
            if sent == self._answered and not wait_for_model():
                # All clients wait for their byte budget.
                deadline.answered()
            deadline.look(now)

    def nobody_asks(self) -> None:
        """Note that the last partition was closed: the server owes no version any more."""
        self._reply_deadline.answered()

    def measure(self) -> Iterable[Measurement]:
        version = max(self._table.versions)
        yield UplinkMetrics.model_version(version, known=version > 0)
        yield UplinkMetrics.unsigned_parameters(self._table.unsigned)
