"""How far a client may run ahead of the model."""

from __future__ import annotations

from streamfl.pofmkl.client.client_record import ClientRecord
from streamfl.pofmkl.learning.section import LearningSection

__all__ = ["YOUNG_LABELS", "StalenessPolicy"]

# A model is young below this many labels a client. It then changes much between versions, and an old version
# costs accuracy.
YOUNG_LABELS = 16


class StalenessPolicy:
    """When a client may learn another label.

    lockstep: clients go in rounds. A round is one version of every shard of the model.
    samples_per_version: labels that a client may learn on one version: 1 in lockstep, n when bounded, None
    when asynchronous.
    upload_interval: seconds after which an upload is sent although no new model came.
    """

    def __init__(self, learning: LearningSection) -> None:
        self.lockstep = learning.lockstep
        self.samples_per_version = 1 if self.lockstep else learning.max_staleness
        self.upload_interval = learning.upload_interval_ms / 1000

    def may_learn(self, record: ClientRecord, versions: tuple[int, ...]) -> bool:
        """Whether a client may learn another label on these versions of the model's shards."""
        if self.samples_per_version is None:
            return True
        if record.learnt_on == versions:
            return record.labels_learnt < self.samples_per_version
        # Between two rounds, some shards have the old version and some the new.
        return not self.lockstep or len(set(versions)) == 1

    def count(self, record: ClientRecord, versions: tuple[int, ...]) -> None:
        """A client learns a label on these versions."""
        if self.samples_per_version is not None:
            record.labels_learnt = record.labels_learnt + 1 if record.learnt_on == versions else 1
            record.learnt_on = versions

    def is_used_up(self, record: ClientRecord) -> bool:
        """Whether a client that is learning may learn no more labels before the model changes."""
        return self.samples_per_version is not None and record.labels_learnt >= self.samples_per_version
