"""Where a client's labels come from: with the samples, or later on a topic of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from streamfl.pofmkl.client_registry import Client, ClientKey
from streamfl.pofmkl.pending_samples import PendingQueues
from streamfl.records.labels import Label
from streamfl.records.samples import Sample
from streamfl.role import Headers, Measurement, OperatorNotice, Record, Send, StateChange

__all__ = ["LabelSource"]


class LabelSource(Protocol):
    """Takes what arrives, lets it wait until its client may learn it, and learns it then."""

    @property
    def pending(self) -> PendingQueues[Any]:
        """What waits for a new version of the model, or for bytes to send."""

    def open(self, partition: int) -> None:
        """Begin a partition."""

    def close(self, partition: int) -> None:
        """Forget what waits in a partition."""

    def arrive(
        self, key: ClientKey, client: Client | None, message: Sample | Label, record: Record, headers: Headers
    ) -> None:
        """A sample or a label of the client, None if it is not registered; PeerError if there is no room for it.

        record: it came in this one. headers: of a sample, what its prediction gets beside the record's key.
        """

    def advance(self, now: float, *, tick: bool) -> list[Send]:
        """Predict and learn all that may be; what is to be sent of it."""

    @property
    def wake_at(self) -> float | None:
        """When something falls due."""

    def set_back(self, now: float) -> None:
        """Let what came after ``now`` have come now."""

    def forget(self, client: Client) -> Iterable[bytes]:
        """Drop what is kept of a client; returns keys of its changelog that are to be forgotten with it."""

    def changed_state(self) -> Iterable[StateChange]:
        """What has to be remembered since the last call."""

    def restore(self, kind: bytes, partition: int, rest: bytes, value: bytes) -> None:
        """Take back what lay under the key ``kind``/``rest``; PeerError if labels came another way then."""

    def notices(self) -> Iterable[OperatorNotice]:
        """What the operator should know."""

    def measure(self) -> Iterable[Measurement]:
        """Figures of its own."""
