"""An entity as the coordinator's changelog holds it, and the same as rows of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.changelog_checks import Time
from streamfl.vafl.messages import encode_rows
from streamfl.wire import Count

__all__ = ["EMBEDDING", "ENTITY", "RememberedEmbedding", "RememberedEntity", "decode_entity", "encode_entities"]


class RememberedEmbedding(msgspec.Struct, array_like=True, gc=False):
    """An embedding of an entity.

    epoch, sequence: its number.
    parameters_version: steps that the party had taken when it made it.
    values: raw numbers.
    fresh: it waits for a gradient.
    asked: a newer one was asked for. It may still come after the waiting for it has ended.
    requests: how often one was asked for and came, since the party showed the entity by itself. The first releases remembered
        whether this one came because it was asked for.
    answers: gradients that went to this party.
    """

    epoch: Count
    sequence: Count
    parameters_version: Count
    values: bytes
    fresh: bool = True
    asked: bool = False
    requests: Count | bool = 0
    answers: Count = 0


class RememberedEntity(msgspec.Struct, array_like=True):
    """An entity.

    since: when it was last heard of, in seconds.
    label: None until it comes.
    held: its embeddings, by the number of the party.
    shown: how many embeddings its last prediction was made of.
    revision: how often it was predicted.
    outputs: what the last prediction was made of; None without one.
    awaited_at: since when a newer embedding, or the learning quorum, is awaited.
    rounds: how often ``wait_for`` parties were learnt from together.
    life: how often its label was told of, by the ledger; 0: never, or without noise.
    noise: by what fingerprint of noise and secret.
    withheld: its label may not be told of.
    learnt_at: when ``wait_for`` parties were last learnt from together.
    """

    since: Time
    label: float | None = None
    held: dict[int, RememberedEmbedding] = {}
    shown: Count = 0
    revision: Count = 0
    outputs: tuple[float, ...] | None = None
    awaited_at: Time | None = None
    rounds: Count = 0
    life: Count = 0
    noise: Count = 0
    withheld: bool = False
    learnt_at: Time | None = None


_ENCODER = msgspec.msgpack.Encoder()

ENTITY = np.dtype(
    [
        ("label", "f8"),
        ("learnt_at", "f8"),
        ("shown", "i8"),
        ("revision", "i8"),
        ("rounds", "i8"),
        ("life", "i8"),
        ("noise", "i8"),
        ("labelled", "?"),
        ("withheld", "?"),
    ]
)
"""A row of what is remembered of an entity. learnt_at: NaN for never."""
EMBEDDING = np.dtype(
    [
        ("epoch", "i8"),
        ("sequence", "i8"),
        ("parameters_version", "i8"),
        ("requests", "i8"),
        ("answers", "i8"),
        ("held", "?"),
        ("fresh", "?"),
        ("asked", "?"),
    ]
)
"""A row of what is remembered of an embedding."""


def decode_entity(value: bytes) -> RememberedEntity:
    """What the coordinator's changelog holds under a key ``entity/name``."""
    return msgspec.msgpack.decode(value, type=RememberedEntity)


def encode_entities(
    entities: NDArray[Any],
    embeddings: NDArray[Any],
    values: NDArray[Any],
    outputs: NDArray[np.float64],
    times: Mapping[str, NDArray[np.float64]],
) -> list[bytes]:
    """n entities, each as a :class:`RememberedEntity`.

    entities: (n,) of ENTITY.
    embeddings: (n, M) of EMBEDDING.
    values: (n, M, embedding size).
    outputs: (n, outputs).
    times: by name, (n,): since, and awaited_at with NaN for none.
    """
    size = embeddings.shape[1]
    columns = {name: embeddings[name].ravel().tolist() for name in embeddings.dtype.fields or ()}
    columns["values"] = encode_rows(values.reshape(-1, values.shape[2]))
    every = list(zip(*(columns[name] for name in RememberedEmbedding.__struct_fields__), strict=True))
    held, parties = columns["held"], range(size)
    of_entities = [
        {number: every[first + number] for number in parties if held[first + number]} for first in range(0, len(every), size)
    ]
    numbers = {name: entities[name].tolist() for name in entities.dtype.fields or ()}
    numbers.update({name: column.tolist() for name, column in times.items()})
    numbers["label"] = [one if known else None for one, known in zip(numbers["label"], numbers["labelled"], strict=True)]
    for name in ("awaited_at", "learnt_at"):
        # Only a NaN differs from itself.
        numbers[name] = [None if one != one else one for one in numbers[name]]
    numbers["held"] = of_entities
    numbers["outputs"] = [one if shown else None for one, shown in zip(outputs.tolist(), numbers["shown"], strict=True)]
    remembered = zip(*(numbers[name] for name in RememberedEntity.__struct_fields__), strict=True)
    return list(map(_ENCODER.encode, remembered))
