"""The messages between clients and servers of POF-MKL, and the prediction that a user reads."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from streamfl.contract.role import Record
from streamfl.encoding.wire import Codec, Count, Name, Version
from streamfl.records.predictions import SamplePrediction
from streamfl.state.state_settings import STATE_SETTINGS_HEADER, STATE_SETTINGS_KEY, decode_settings

__all__ = [
    "AWAITED",
    "KERNEL_PARAMETERS",
    "LARGEST_STEP",
    "LARGEST_TARGET",
    "SHARD_VERSION",
    "SIGNED_VERSION",
    "UPDATE",
    "KernelParameters",
    "Prediction",
    "PublishedSettings",
    "ShardVersion",
    "SignedVersion",
    "Update",
]

Dimension = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class Update(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """A client's steps for some kernels of one shard, made with ``model_version`` of that shard.

    ``dimension``: of the client's inputs. ``steps``: (len(kernels), 2 D) raw numbers. By preset they are
    gradient steps (equation 9), already divided by the bin's probability, none above ``LARGEST_STEP``; or
    target rows y z, each of one sample and with a norm up to ``LARGEST_TARGET``
    (:mod:`streamfl.pofmkl.learning.server_steps`). No kernels: the client took part in the round but sent
    none. ``sequence`` grows by one an upload within an ``epoch``, which is one life of the client's state.
    """

    version: Version
    fingerprint: Count
    dimension: Dimension
    client: Name
    epoch: Count
    sequence: Count
    model_version: Count
    samples: Count
    kernels: tuple[Count, ...]
    steps: bytes


class KernelParameters(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The global parameters of one kernel, (2 D,) raw numbers."""

    version: Version
    kernel: Count
    parameters: bytes


class ShardVersion(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Ends a version of a shard: all parameters before it in the partition belong to ``model_version``.

    ``dimension``: of the inputs that the model has learnt from. ``updates``: uploads applied so far. In
    lockstep ``model_version`` counts rounds, otherwise it equals ``updates``.
    """

    version: Version
    fingerprint: Count
    dimension: Count
    shard: Count
    model_version: Count
    updates: Count


class SignedVersion(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A shard's version where members have keys. It takes the place of ``marker``.

    ``digests``: 16 bytes for each kernel of the shard, in order. ``signature``: 8 bytes that name the
    server's key, 64 of Ed25519."""

    version: Version
    marker: ShardVersion
    digests: bytes
    signature: bytes


class PublishedSettings(msgspec.Struct, frozen=True):
    """The settings that a server's model is made with, as its worker stores them beside it: plain values by
    dotted key."""

    values: dict[str, Any]


class Prediction(SamplePrediction, gc=False):
    """The prediction that the user's consumers read: one for every sample."""

    model_version: int | tuple[int, ...]
    label: float | None


UPDATE = Codec(Update)
# The header of an update whose client is behind, and waits for a version with it. Servers that do not know
# the header ignore it.
AWAITED = (("awaited", b""),)
KERNEL_PARAMETERS = Codec(KernelParameters)
SHARD_VERSION = Codec(ShardVersion)
SIGNED_VERSION = Codec(SignedVersion)
MARKER_KEY = b"version"
SIGNED_KEY = b"signed-version"

# Far above any step that learns something, and so far below the largest float32 that sums of steps stay
# finite.
LARGEST_STEP = 1e18
# The standardised labels of target rows are clipped to this many standard deviations.
LARGEST_TARGET = 3.0


def kernel_key(kernel: int) -> bytes:
    return b"kernel/%d" % kernel


def decode_model(key: bytes | None, value: bytes | None) -> KernelParameters | ShardVersion | SignedVersion:
    """A record of the model topic; BadRecord as :meth:`streamfl.encoding.wire.Codec.decode`."""
    if key == SIGNED_KEY:
        return SIGNED_VERSION.decode(value)
    return SHARD_VERSION.decode(value) if key == MARKER_KEY else KERNEL_PARAMETERS.decode(value)


def decode_model_record(
    record: Record,
) -> KernelParameters | ShardVersion | SignedVersion | PublishedSettings:
    """As :func:`decode_model`, or the settings that the model is made with."""
    if record.key == STATE_SETTINGS_KEY:
        return PublishedSettings(decode_settings(dict(record.headers).get(STATE_SETTINGS_HEADER)))
    return decode_model(record.key, record.value)
