"""The coordinator's replies to parties: gradients, and requests for newer embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import Send
from streamfl.encoding.wire import VERSION
from streamfl.vafl.messages import REPLY, Reply, encode_rows

__all__ = ["Replies"]


class Replies:
    """The replies of one batch. Requests wait until its end, or until a gradient of the same entity.

    A party takes the steps of the gradients that come before a request, and answers the request by the
    parameters after them.

    parties: names of the parties, in order.
    fingerprint: of the settings that all members have to agree on.
    """

    def __init__(self, parties: Sequence[str], fingerprint: int) -> None:
        self._channels = [f"gradients/{name}" for name in parties]
        self._fingerprint = fingerprint
        # Waiting requests of this batch, by channel and key.
        self._requests: dict[tuple[str, bytes | None], list[Send]] = {}

    def encode(
        self,
        partition: int,
        names: Sequence[str],
        epochs: NDArray[np.int64],
        sequences: NDArray[np.int64],
        chosen: NDArray[np.bool_],
        gradients: NDArray[Any] | None = None,
    ) -> list[Send]:
        """Replies of n entities to the parties that are chosen.

        names: the entities.
        epochs, sequences: (n, M), numbers of the embeddings that are answered.
        chosen: (n, M), which parties are answered.
        gradients: (n, M, embedding size); None: the replies ask for newer embeddings.
        """
        if not chosen.any():
            return []
        columns = (
            *(places.tolist() for places in np.nonzero(chosen)),
            epochs[chosen].tolist(),
            sequences[chosen].tolist(),
        )
        contents = [b""] * len(columns[0]) if gradients is None else encode_rows(gradients[chosen])
        channels, encode, sends = self._channels, REPLY.encode, []
        for place, number, epoch, sequence, content in zip(*columns, contents, strict=True):
            name = names[place]
            message = Reply(VERSION, self._fingerprint, name, epoch, sequence, content)
            sends.append(Send(channels[number], name.encode(), encode(message), partition))
        return sends

    def order(self, requests: list[Send], gradients: list[Send]) -> list[Send]:
        """The replies to send now: gradients, each after earlier requests for the same party and entity. New
        requests wait."""
        if self._requests:
            gradients = [
                one for send in gradients for one in (*self._requests.pop((send.channel, send.key), ()), send)
            ]
        for send in requests:
            self._requests.setdefault((send.channel, send.key), []).append(send)
        return gradients

    def take_requests(self) -> list[Send]:
        """The requests that waited until the end of the batch."""
        requests, self._requests = self._requests, {}
        return [send for sends in requests.values() for send in sends]
