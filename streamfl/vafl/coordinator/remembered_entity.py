"""An entity in the coordinator's changelog, and the same as rows of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.encoding.changelog_checks import Time
from streamfl.encoding.wire import Count
from streamfl.vafl.messages import encode_rows

__all__ = ["EMBEDDING_ROW", "ENTITY_ROW", "RememberedEmbedding", "RememberedEntity", "encode_entities"]


class RememberedEmbedding(msgspec.Struct, array_like=True, gc=False):
    """An embedding of an entity, as remembered.

    epoch, sequence: its number.
    parameters_version: the party's steps when it made the embedding.
    values: raw numbers.
    unanswered: whether it waits for a gradient.
    asked: whether the coordinator asked for a newer one. It may still come after the waiting has ended.
    requests: how many newer embeddings came on request since the last one that the party sent by itself.
        The first releases remembered only whether this one was asked for.
    answers: gradients of this entity that went to the party.
    """

    epoch: Count
    sequence: Count
    parameters_version: Count
    values: bytes
    unanswered: bool = True
    asked: bool = False
    requests: Count | bool = 0
    answers: Count = 0


class RememberedEntity(msgspec.Struct, array_like=True):
    """An entity, as remembered.

    since: time of its last message, in seconds.
    label: None until it comes.
    held: its embeddings, by the number of the party.
    shown: number of embeddings in its last prediction.
    revision: how often it was predicted.
    outputs: the head's outputs of the last prediction; None without a prediction.
    awaited_at: since when it waits for a newer embedding, or for the learning quorum.
    rounds: how often it was learnt from with ``wait_for`` parties together.
    releases: how often its label was released, by the ledger; 0: never, or without noise.
    noise: fingerprint of the noise and secret of the last release.
    withheld: whether its label may not be released.
    learnt_at: when it was last learnt from with ``wait_for`` parties together.
    """

    since: Time
    label: float | None = None
    held: dict[int, RememberedEmbedding] = {}
    shown: Count = 0
    revision: Count = 0
    outputs: tuple[float, ...] | None = None
    awaited_at: Time | None = None
    rounds: Count = 0
    releases: Count = 0
    noise: Count = 0
    withheld: bool = False
    learnt_at: Time | None = None


_ENCODER = msgspec.msgpack.Encoder()

ENTITY_ROW = np.dtype(
    [
        ("label", "f8"),
        ("learnt_at", "f8"),
        ("shown", "i8"),
        ("revision", "i8"),
        ("rounds", "i8"),
        ("releases", "i8"),
        ("noise", "i8"),
        ("labelled", "?"),
        ("withheld", "?"),
    ]
)
"""Row of an entity. learnt_at: NaN for never."""
EMBEDDING_ROW = np.dtype(
    [
        ("epoch", "i8"),
        ("sequence", "i8"),
        ("parameters_version", "i8"),
        ("requests", "i8"),
        ("answers", "i8"),
        ("held", "?"),
        ("unanswered", "?"),
        ("asked", "?"),
    ]
)
"""Row of an embedding."""


def encode_entities(
    entities: NDArray[Any],
    embeddings: NDArray[Any],
    values: NDArray[Any],
    outputs: NDArray[np.float64],
    times: Mapping[str, NDArray[np.float64]],
) -> list[bytes]:
    """Encode n entities, each as a :class:`RememberedEntity`.

    entities: (n,) of ENTITY_ROW.
    embeddings: (n, M) of EMBEDDING_ROW.
    values: (n, M, embedding size).
    outputs: (n, outputs).
    times: by name, (n,): since, and awaited_at with NaN for none, in seconds.
    """
    size = embeddings.shape[1]
    columns = {name: embeddings[name].ravel().tolist() for name in embeddings.dtype.fields or ()}
    columns["values"] = encode_rows(values.reshape(-1, values.shape[2]))
    every = list(zip(*(columns[name] for name in RememberedEmbedding.__struct_fields__), strict=True))
    held, parties = columns["held"], range(size)
    of_entities = [
        {number: every[first + number] for number in parties if held[first + number]}
        for first in range(0, len(every), size)
    ]
    numbers = {name: entities[name].tolist() for name in entities.dtype.fields or ()}
    numbers.update({name: column.tolist() for name, column in times.items()})
    numbers["label"] = [
        one if known else None for one, known in zip(numbers["label"], numbers["labelled"], strict=True)
    ]
    for name in ("awaited_at", "learnt_at"):
        # Only a NaN differs from itself.
        numbers[name] = [None if one != one else one for one in numbers[name]]
    numbers["held"] = of_entities
    numbers["outputs"] = [
        one if shown else None for one, shown in zip(outputs.tolist(), numbers["shown"], strict=True)
    ]
    remembered = zip(*(numbers[name] for name in RememberedEntity.__struct_fields__), strict=True)
    return list(map(_ENCODER.encode, remembered))
