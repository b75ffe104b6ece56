"""What parties and the coordinator say to each other, and the prediction that a user reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.role import PeerError
from streamfl.wire import Codec, Count, Name, Number, Version, decode_array, encode_array

__all__ = [
    "ANOTHER",
    "EMBEDDING",
    "LARGEST_NUMBER",
    "REPLY",
    "Embedding",
    "Prediction",
    "Reply",
    "bounded_array",
    "bounded_rows",
    "encode_rows",
    "within_bounds",
]

# Why what another member, or this one in an earlier life, said is not for this federation.
ANOTHER = "another federation name, seed, list of parties, embedding size or precision was used"

# Far above any embedding or gradient that means something, and sums of squares of such numbers stay finite in single precision.
LARGEST_NUMBER = 1e9


class Embedding(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """h_nm: what a party shows of an entity. ``values``: (embedding size,) raw numbers.

    ``sequence`` grows by one an embedding of one partition within an ``epoch``, one life of the party's state there.
    ``parameters_version``: steps that the party had taken when it made it.
    """

    version: Version
    fingerprint: Count
    entity: Name
    epoch: Count
    sequence: Count
    parameters_version: Count
    values: bytes


class Reply(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """To the embedding with this ``epoch`` and ``sequence``: d l / d h_nm, (embedding size,) raw numbers.

    No bytes: the embedding is too old, a new one is asked for.
    """

    version: Version
    fingerprint: Count
    entity: Name
    epoch: Count
    sequence: Count
    gradient: bytes


class Prediction(msgspec.Struct, gc=False, omit_defaults=True):
    """What the user's consumers read: one for an entity as soon as enough parties have shown it, and again with every one more.

    prediction: in the label's own unit, the probability of label 1, or the probability of every class. embeddings: how many parties
    it is made of; what is missing is replaced by the mean of that party's embeddings. revision: counts an entity's predictions
    from 0.
    """

    entity: str
    prediction: float | list[float]
    embeddings: int
    revision: int


EMBEDDING = Codec(Embedding)
REPLY = Codec(Reply)


def bounded_array(content: bytes, dtype: type[Number], size: int, name: str) -> NDArray[Number]:
    """The numbers of an embedding or a gradient, (size,); PeerError with reason shape or not_finite."""
    array = decode_array(content, dtype, (size,), name)
    if np.abs(array).max() > LARGEST_NUMBER:
        raise PeerError("not_finite", f"{name} holds a number above {LARGEST_NUMBER:g}")
    return array


def bounded_rows(contents: Sequence[bytes], dtype: type[Number], size: int) -> list[NDArray[Number] | None]:
    """The numbers of many embeddings or gradients, checked at once; None of what :func:`bounded_array` refuses, and says why."""
    width = size * np.dtype(dtype).itemsize
    joined = b"".join([content if len(content) == width else bytes(width) for content in contents])
    rows = np.frombuffer(joined, np.dtype(dtype).newbyteorder("<")).astype(dtype, copy=False).reshape(len(contents), size)
    # False of a NaN too.
    bounded = (np.abs(rows).max(axis=1, initial=0) <= LARGEST_NUMBER).tolist()
    return [
        row if within and len(content) == width else None for row, within, content in zip(rows, bounded, contents, strict=True)
    ]


def encode_rows(array: NDArray[Any]) -> list[bytes]:
    """The bytes of each row of (n, k), as :func:`~streamfl.wire.encode_array` gives them."""
    content, width = encode_array(array), array[0].nbytes if len(array) else 0
    return [content[place * width : (place + 1) * width] for place in range(len(array))]


def within_bounds(array: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Numbers that :func:`bounded_array` takes, as near as there are; 0 for NaN."""
    return np.asarray(np.clip(np.nan_to_num(array, nan=0.0), -LARGEST_NUMBER, LARGEST_NUMBER), dtype=dtype)
