"""Where a client's labels come from: with the samples, or later on a topic of their own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from streamfl.contract.role import Headers, Measurement, OperatorNotice, Record, Send, StateChange
from streamfl.pofmkl.client.pending_samples import PendingQueues
from streamfl.pofmkl.client.registered_client import Client, ClientKey
from streamfl.records.labels import Label
from streamfl.records.samples import Sample

__all__ = ["LabelSource", "Restore"]

Restore = Callable[[int, bytes, bytes], None]
"""Takes a partition, a changelog key without its prefix, and a value. BadRecord if they cannot have been
written."""


class LabelSource(Protocol):
    """Takes samples and labels, holds them until their client may learn them, and learns them then."""

    @property
    def pending(self) -> PendingQueues[Any]:
        """Items that wait for a new version of the model, or for bytes in the client's budget."""

    def open(self, partition: int) -> None:
        """Begin a partition."""

    def close(self, partition: int) -> None:
        """Forget the items of a partition."""

    def arrive(
        self, key: ClientKey, client: Client | None, message: Sample | Label, record: Record, headers: Headers
    ) -> None:
        """Take a sample or a label. client: None if it is not registered. BadRecord if there is no room for
        it.

        record: the record of the message.
        headers: for a sample, the headers of its prediction.
        """

    def advance(self, now: float, *, tick: bool) -> list[Send]:
        """Predict and learn everything that may be learnt now. Returns the messages to send."""

    @property
    def most_records(self) -> int | None:
        """The most records that are worth reading at a time; None: any number."""

    @property
    def paused(self) -> Collection[tuple[str, int]]:
        """The inputs, by channel and partition, that wait until another one was read further."""

    @property
    def wake_at(self) -> float | None:
        """When the next item falls due."""

    def set_back(self, now: float) -> None:
        """Set times after ``now`` back to ``now``."""

    def forget(self, client: Client) -> Iterable[bytes]:
        """Forget a client. Returns its keys in the changelog that are to be deleted."""

    def changed_state(self) -> Iterable[StateChange]:
        """State that changed since the last call."""

    @property
    def restores(self) -> Mapping[bytes, Restore]:
        """What restores this source's rows of the changelog, by prefix."""

    def notices(self) -> Iterable[OperatorNotice]:
        """Notices for the operator."""

    def measure(self) -> Iterable[Measurement]:
        """Metrics that only this source has."""
