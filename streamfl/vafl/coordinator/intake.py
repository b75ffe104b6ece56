"""The coordinator's checks of the embeddings and labels that it receives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from streamfl.contract.role import BadRecord, Received, Rejection
from streamfl.records.labels import Label
from streamfl.roles.received_numbers import check_numbers
from streamfl.state.clock_guard import time_written
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.coordinator.parties import SentEmbeddings
from streamfl.vafl.given import CoordinatorGiven
from streamfl.vafl.messages import ANOTHER, Embedding, bounded_array, bounded_rows

__all__ = ["Intake"]


class Intake:
    """Checks messages, many at once.

    settings, given: the coordinator's.
    numbers: channel of embeddings to the party's number; labels come on other channels.
    """

    def __init__(self, settings: VaflSettings, given: CoordinatorGiven, numbers: Mapping[str, int]) -> None:
        self._numbers = numbers
        self._dtype = settings.dtype
        self._embedding_size = settings.federation.embedding_size
        self._fingerprint = settings.fingerprint
        self._loss = given.loss
        self._carry = given.carry

    def sorted_out(
        self, messages: list[Received], now: float
    ) -> tuple[list[Received], SentEmbeddings, list[Rejection]]:
        """Returns the valid messages, the embeddings among them, and rejections of the others."""
        embeddings = [one for one in messages if one.channel in self._numbers]
        shown, bounded = self._columns(embeddings)
        labels = {one.message.label for one in messages if one.channel not in self._numbers}
        if bounded and all(map(self._loss.accepts, labels)) and self._are_sound(embeddings, shown, now):
            return messages, shown, []
        sound: list[Received] = []
        refused: list[Rejection] = []
        for received in messages:
            try:
                self._check(received, now)
            except BadRecord as error:
                refused.append(Rejection(received, error))
            else:
                sound.append(received)
        return sound, self._columns([one for one in sound if one.channel in self._numbers])[0], refused

    def values(self, content: bytes) -> NDArray[Any]:
        """The numbers of an embedding, (embedding size,); BadRecord with reason shape or not_finite."""
        return bounded_array(content, self._dtype, self._embedding_size, "embedding")

    def check_label(self, label: float, text: str) -> None:
        """BadRecord with this text if the label is not valid."""
        if not self._loss.accepts(label):
            raise BadRecord("label", text)

    def _columns(self, embeddings: list[Received]) -> tuple[SentEmbeddings, bool]:
        """The embeddings as columns, and whether all of their numbers are within bounds."""
        shown: list[Embedding] = [one.message for one in embeddings]
        values, bounded = bounded_rows([one.values for one in shown], self._dtype, self._embedding_size)
        columns = (
            [one.entity for one in shown],
            [one.epoch for one in shown],
            [one.sequence for one in shown],
            [one.parameters_version for one in shown],
        )
        headers = [self._carry(one.record) for one in embeddings]
        return SentEmbeddings(*columns, headers, values), bool(bounded.all())

    def _are_sound(self, embeddings: list[Received], shown: SentEmbeddings, now: float) -> bool:
        """Whether all of the embeddings are valid. False: each has to be checked by itself."""
        if not embeddings:
            return True
        records = [one.record for one in embeddings]
        try:
            earliest = min(time_written(at, now) for at in {one.timestamp for one in records})
            check_numbers(max(shown.epochs), max(shown.sequences), earliest)
        except BadRecord:
            return False
        return (
            min(shown.epochs) >= 0
            and min(shown.sequences) >= 0
            and {one.message.fingerprint for one in embeddings} == {self._fingerprint}
            and [one.key for one in records] == [name.encode() for name in shown.names]
        )

    def _check(self, received: Received, now: float) -> None:
        """BadRecord for an invalid message."""
        message = received.message
        if isinstance(message, Label):
            classes = max(self._loss.outputs, 2)
            self.check_label(
                message.label, f"the label {message.label:g} is not one of {classes} classes from 0"
            )
            return
        if received.record.key != message.entity.encode():
            raise BadRecord(
                "forged", f"embedding of {message.entity!r} under the key {received.record.key!r}"
            )
        if message.fingerprint != self._fingerprint:
            raise BadRecord("configuration", ANOTHER)
        check_numbers(message.epoch, message.sequence, time_written(received.record.timestamp, now))
        self.values(message.values)
