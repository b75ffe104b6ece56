"""The messages of POF-MKL's members, for a person at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from streamfl.contract.role import Record
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.messages import (
    UPDATE,
    KernelParameters,
    PublishedSettings,
    SignedVersion,
    decode_model_record,
)

__all__ = ["model", "updates"]


def updates(settings: PofmklSettings) -> Callable[[Record], Mapping[str, Any]]:
    """Shows an update: its client, the model version that it was made with, and its size."""
    number = np.dtype("<f8" if settings.learning.precision == "float64" else "<f4")

    def says(record: Record) -> Mapping[str, Any]:
        update = UPDATE.read(record)
        steps = np.frombuffer(update.steps[: len(update.steps) // number.itemsize * number.itemsize], number)
        with np.errstate(over="ignore", invalid="ignore"):
            length = float(np.sqrt(np.square(steps, dtype=np.float64).sum()))
        return {
            "client": update.client,
            "number": update.sequence,
            "version": update.model_version,
            "samples": update.samples,
            "kernels": list(update.kernels),
            "length": length,
            "bytes": len(record.value or b""),
        }

    return says


def model(settings: PofmklSettings) -> Callable[[Record], Mapping[str, Any]]:
    """Shows a record of the model: a kernel's parameters, the end of a version, or the settings that it is
    made with."""
    number = np.dtype("<f8" if settings.learning.precision == "float64" else "<f4")

    def says(record: Record) -> Mapping[str, Any]:
        message = decode_model_record(record)
        if isinstance(message, PublishedSettings):
            return {"settings": message.values}
        if isinstance(message, KernelParameters):
            count = len(message.parameters) // number.itemsize
            parameters = np.frombuffer(message.parameters[: count * number.itemsize], number)
            return {"kernel": message.kernel, "length": float(np.linalg.norm(parameters.astype(np.float64)))}
        marker = message.marker if isinstance(message, SignedVersion) else message
        signed = isinstance(message, SignedVersion)
        return {
            "shard": marker.shard,
            "model_version": marker.model_version,
            "updates": marker.updates,
            "signed": signed,
        }

    return says
