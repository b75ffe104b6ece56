"""When an iteration is due, and how long the first one waits for entities to standardise columns by."""

from __future__ import annotations

from streamfl.fdskl.config import FdsklSettings
from streamfl.fdskl.learning.iteration import FEWEST_DISTANCES
from streamfl.fdskl.learning.labelled import LabelledEntities
from streamfl.fdskl.learning.model import KernelModel
from streamfl.fdskl.learning.schedule import labels_wanted
from streamfl.fdskl.sums.standardisation import Standardisation
from streamfl.roles.notices import Notices

__all__ = ["Due"]


class Due:
    """When iterations of one partition are due. It is not remembered: a restart waits anew, and no longer
    than this.

    settings: of the party.
    labelled, model, standardisation: of the partition.
    notices: for the operator.
    """

    def __init__(
        self,
        settings: FdsklSettings,
        labelled: LabelledEntities,
        model: KernelModel,
        standardisation: Standardisation,
        notices: Notices,
    ) -> None:
        self._learning = settings.learning
        self._first_block = settings.learning.first_block
        self._first_entities = settings.standardisation.first_entities
        self._reply_seconds = settings.alignment.reply_seconds
        self._labelled = labelled
        self._model = model
        self._standardisation = standardisation
        self._notices = notices
        # Since when the first iteration has had its labels.
        self._since: float | None = None
        self._has_said_so = False

    @property
    def knows_bandwidth(self) -> bool:
        return self._model.bandwidth is not None or self._learning.bandwidth is not None

    @property
    def missing(self) -> int:
        """Labels that have to come before an iteration is due; 0 or less: it is."""
        missing = self._wanted - self._labelled.fresh
        return missing if self.knows_bandwidth else max(missing, 2 * FEWEST_DISTANCES - len(self._labelled))

    @property
    def is_due(self) -> bool:
        """Whether there are enough labels for an iteration."""
        return self.missing <= 0

    @property
    def missing_at_first(self) -> int:
        """Labelled entities that the first iteration still waits for."""
        return 0 if self._model.version else max(0, self.missing)

    @property
    def is_empty(self) -> bool:
        """Whether no entity and no label has come to the partition."""
        return not (self._model.version or self._standardisation.seen or self._labelled.fresh)

    @property
    def awaited(self) -> str | None:
        """What the first model waits for, and how much of it is there; None once there is one."""
        if self._model.version:
            return None
        seen = self._standardisation.seen
        told = (
            f"knows {self._labelled.fresh:,} of {self._wanted:,} entities with a label that the first "
            "iteration takes"
        )
        told += (
            " (learning.first_instances)"
            if self._learning.solver == "newton"
            else " (learning.block_instances)"
        )
        if self.missing_at_first:
            return told
        if not self._standardisation.frozen:
            scale = f"{seen:,} of {self._first_entities:,} entities, or {self._reply_seconds:g} s"
            return f"{told}: waits for {scale}, for the columns' scale"
        return f"{told}: waits for the parties' answers"

    @property
    def _wanted(self) -> int:
        return labels_wanted(self._labelled.learnt, self._first_block, self._learning.block_instances)

    def look(self, now: float) -> None:
        """Note when the first iteration has its labels."""
        if self._since is None and not self._standardisation.frozen and self.is_due:
            self._since = now

    def set_back(self, now: float) -> None:
        """The clock was ahead: set later times back to ``now``."""
        if self._since is not None:
            self._since = min(self._since, now)

    @property
    def freezes_at(self) -> float | None:
        """When columns are standardised by fewer entities than wanted, because the first iteration waits for
        them."""
        if self._standardisation.frozen or self._since is None or not self.is_due:
            return None
        return min(self._since + self._reply_seconds, self._standardisation.waits_until)

    def pass_time(self, now: float) -> None:
        """A tick."""
        self.look(now)
        if (at := self.freezes_at) is None:
            return
        if at <= now:
            self._standardisation.freeze()
        elif not self._has_said_so:
            self._has_said_so = True
            self._notices.say(
                "first_entities",
                f"learning begins once {self._first_entities} samples were seen in a partition, which "
                f"columns are standardised by, or {self._reply_seconds:g} s after the labels of the first "
                f"iteration; there are {self._standardisation.seen}",
            )
