"""Messages between parties and the coordinator, and the prediction that users read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.encoding.wire import Codec, Count, Name, Number, Version, decode_array, encode_array

__all__ = [
    "ANOTHER",
    "EMBEDDING",
    "LARGEST_COMPONENT",
    "REPLY",
    "Embedding",
    "Prediction",
    "Reply",
    "bounded_array",
    "bounded_rows",
    "encode_rows",
    "within_bounds",
]

# Reason to refuse a message of another member, or state that this member wrote before a restart.
ANOTHER = "another federation name, seed, list of parties, embedding size or precision was used"

# Bound of one number in an embedding or gradient, far above any useful one. Sums of squares stay finite in
# single precision.
LARGEST_COMPONENT = 1e9


class Embedding(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """h_nm: a party's embedding of an entity.

    epoch: one life of the party's state in the partition.
    sequence: grows by one with each embedding of the partition within an epoch.
    parameters_version: the party's steps when it made the embedding.
    values: (embedding size,) raw numbers.
    """

    version: Version
    fingerprint: Count
    entity: Name
    epoch: Count
    sequence: Count
    parameters_version: Count
    values: bytes


class Reply(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """The coordinator's answer to the embedding with this ``epoch`` and ``sequence``.

    gradient: d l / d h_nm, (embedding size,) raw numbers. Empty: the embedding is too old, and the party
    should send a newer one."""

    version: Version
    fingerprint: Count
    entity: Name
    epoch: Count
    sequence: Count
    gradient: bytes


class Prediction(msgspec.Struct, gc=False, omit_defaults=True):
    """The record that users read: one as soon as enough parties have sent an entity, and one more with each
    further party.

    prediction: in the label's own unit, the probability of label 1, or the probability of every class.
    embeddings: number of parties whose embeddings it uses; the mean of a party's embeddings replaces a
    missing one.
    revision: counts an entity's predictions from 0.
    """

    entity: str
    prediction: float | list[float]
    embeddings: int
    revision: int


EMBEDDING = Codec(Embedding)
REPLY = Codec(Reply)


def bounded_array(content: bytes, dtype: type[Number], size: int, name: str) -> NDArray[Number]:
    """The numbers of an embedding or a gradient, (size,); BadRecord with reason shape or not_finite."""
    array = decode_array(content, dtype, (size,), name)
    if np.abs(array).max() > LARGEST_COMPONENT:
        raise BadRecord("not_finite", f"{name} holds a number above {LARGEST_COMPONENT:g}")
    return array


def bounded_rows(
    contents: Sequence[bytes], dtype: type[Number], size: int
) -> tuple[NDArray[Number], NDArray[np.bool_]]:
    """The numbers of n embeddings or gradients, (n, size), and which of them :func:`bounded_array` would
    accept, (n,).

    Contents of another size become zeros.
    """
    width = size * np.dtype(dtype).itemsize
    sized = np.fromiter(map(len, contents), np.intp, len(contents)) == width
    whole = (
        contents
        if sized.all()
        else [content if len(content) == width else bytes(width) for content in contents]
    )
    rows = (
        np.frombuffer(b"".join(whole), np.dtype(dtype).newbyteorder("<"))
        .astype(dtype, copy=False)
        .reshape(-1, size)
    )
    # False for a NaN too.
    return rows, sized & (np.abs(rows).max(axis=1, initial=0) <= LARGEST_COMPONENT)


def encode_rows(array: NDArray[Any]) -> list[bytes]:
    """The bytes of each row of (n, k), as :func:`~streamfl.encoding.wire.encode_array` encodes them."""
    content, width = encode_array(array), array[0].nbytes if len(array) else 0
    return [content[place * width : (place + 1) * width] for place in range(len(array))]


def within_bounds(array: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """The nearest numbers that :func:`bounded_array` accepts; 0 for NaN."""
    return np.asarray(
        np.clip(np.nan_to_num(array, nan=0.0), -LARGEST_COMPONENT, LARGEST_COMPONENT), dtype=dtype
    )
