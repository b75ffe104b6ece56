"""The server's model as a client holds it: a table that changes from one version to the next, never in between."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.pofmkl.messages import LARGEST_STEP, KernelParameters, ShardVersion, SignedVersion
from streamfl.pofmkl.signed_model import ModelSigning, StagedShard, empty_row
from streamfl.role import PeerError
from streamfl.wire import decode_array

__all__ = ["ModelTable"]


class ModelTable:
    """Parameters of every kernel, (kernels, row_length), and the version of each shard.

    Version 0 is all zeros, known without a server. With ``signing`` only versions are taken that the server signed.
    """

    def __init__(
        self,
        kernels: int,
        row_length: int,
        dimension: int,
        shards: int,
        fingerprint: int,
        dtype: type[np.float32] | type[np.float64],
        signing: ModelSigning | None = None,
    ) -> None:
        self.parameters: NDArray[Any] = np.zeros((kernels, row_length), dtype)
        self.squared_norms = np.zeros(kernels)
        self.versions: tuple[int, ...] = (0,) * shards
        self._dimension = dimension
        self._fingerprint = fingerprint
        self._dtype = dtype
        self._staged: dict[int, dict[int, NDArray[Any]]] = {shard: {} for shard in range(shards)}
        self._signed: dict[int, StagedShard] = {}
        if signing is not None:
            empty = empty_row(row_length, dtype)
            self._signed = {shard: StagedShard(signing, range(shard, kernels, shards), empty) for shard in range(shards)}
        self._refused: dict[int, str] = {}

    @property
    def trouble(self) -> str | None:
        """Why the newest versions that came were not taken; None if they were."""
        if not self._refused:
            return None
        return f"the model goes on as it was: {'; '.join(self._refused.values())}"

    @property
    def unsigned(self) -> int:
        """Parameters that came and belong to no version that the server signed."""
        return sum(staged.unsigned for staged in self._signed.values())

    @property
    def name(self) -> int | tuple[int, ...]:
        """The version as predictions name it: a number, or one for each shard."""
        return self.versions[0] if len(self.versions) == 1 else self.versions

    def apply(self, message: KernelParameters | ShardVersion | SignedVersion, shard: int) -> None:
        """Take a record of the model topic; PeerError where it does not fit this federation."""
        if shard not in self._staged:
            raise PeerError("shard", f"the model has partition {shard}, federation.shards is {len(self.versions)}")
        signed = self._signed.get(shard)
        if isinstance(message, KernelParameters):
            if not 0 <= message.kernel < len(self.parameters) or message.kernel % len(self.versions) != shard:
                raise PeerError("kernel", f"kernel {message.kernel} does not belong to shard {shard}")
            parameters: NDArray[Any] = decode_array(message.parameters, self._dtype, self.parameters.shape[1:], "parameters")
            if not np.abs(parameters).max() <= LARGEST_STEP:
                raise PeerError("not_finite", f"parameters of kernel {message.kernel} hold a number above {LARGEST_STEP:g}")
            if signed is None:
                self._staged[shard][message.kernel] = parameters
            else:
                signed.add(message.kernel, message.parameters, parameters)
            return
        # Whatever the marker says, the kernels before it belong to no later version.
        staged, self._staged[shard] = self._staged[shard], {}
        version, message = message, message.marker if isinstance(message, SignedVersion) else message
        if message.fingerprint != self._fingerprint or message.shard != shard:
            raise PeerError(
                "configuration",
                "the server has another federation name, seed, loss, dictionary, features_per_kernel, precision or shards",
            )
        if message.dimension != self._dimension:
            raise PeerError(
                "configuration", f"the federation's samples have {message.dimension} features, this client's {self._dimension}"
            )
        if signed is not None:
            try:
                if not isinstance(version, SignedVersion):
                    raise PeerError("unsigned", f"version {message.model_version} of the model comes without a signature")
                staged = signed.take(version)
            except PeerError as error:
                self._refused[shard] = str(error)
                raise
            self._refused.pop(shard, None)
        for kernel, parameters in staged.items():
            self.parameters[kernel] = parameters
            self.squared_norms[kernel] = np.square(parameters, dtype=np.float64).sum()
        self.versions = (*self.versions[:shard], message.model_version, *self.versions[shard + 1 :])
