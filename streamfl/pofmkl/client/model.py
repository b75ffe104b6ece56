"""A client's copy of the server's model: a table that changes only from one whole version to the next."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.encoding.wire import decode_array
from streamfl.pofmkl.messages import KernelParameters, ShardVersion, SignedVersion
from streamfl.pofmkl.signed_model import ModelSigning, StagedShard, empty_row
from streamfl.roles.received_numbers import LARGEST_COUNT

__all__ = ["LARGEST_PARAMETERS", "ModelTable"]

# A kernel predicts theta . z with |z| = 1. Labels are between 0 and 1, and a thousand at most. The default
# server_step keeps |theta| <= 3 sqrt(10 n) after n rows (see server_steps), so only more than 10^10 updates
# could reach this bound.
LARGEST_PARAMETERS = 1e6
# Most versions between two that a client reads: one commit of the server has many updates, and compaction
# removes old versions.
LARGEST_JUMP = 100_000


class ModelTable:
    """Parameters of every kernel, (kernels, row_length), and the version of each shard.

    Version 0 is all zeros and needs no server. A version lower than the last is accepted: the server repairs
    its topic that way. With ``signing``, only versions that the server signed are accepted. lockstep: for
    each shard, whether its server counts rounds instead of updates, as far as its numbers show.
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
            self._signed = {
                shard: StagedShard(signing, range(shard, kernels, shards), empty) for shard in range(shards)
            }
        # By shard: why its newest marker was refused. By kernel: why it was refused. By shard: the version of
        # a refused jump.
        self._refused: dict[int, str] = {}
        self._implausible: dict[int, str] = {}
        self._jumped_to: dict[int, int] = {}
        self.lockstep: tuple[bool, ...] = (False,) * shards

    @property
    def unsigned(self) -> int:
        """Received parameters that belong to no version that the server signed."""
        return sum(staged.unsigned for staged in self._signed.values())

    @property
    def name(self) -> int | tuple[int, ...]:
        """The version as predictions name it: a number, or a tuple with one number for each shard."""
        return self.versions[0] if len(self.versions) == 1 else self.versions

    @property
    def published(self) -> bool:
        """Whether a server has published any of it."""
        return any(self.versions)

    @property
    def trouble(self) -> str | None:
        """Why the newest records of the model topic are not in use; None if they are."""
        reasons = [*self._refused.values(), *self._implausible.values()]
        return reasons[0] if reasons else None

    def apply(self, message: KernelParameters | ShardVersion | SignedVersion, shard: int) -> None:
        """Applies a record of the model topic. BadRecord if it does not fit here or is implausible."""
        if shard not in self._staged:
            raise BadRecord(
                "shard", f"the model has partition {shard}, federation.shards is {len(self.versions)}"
            )
        if isinstance(message, KernelParameters):
            self._stage(message, shard)
        else:
            self._take_version(message, shard)

    def _stage(self, message: KernelParameters, shard: int) -> None:
        """Keep a kernel's parameters until the version comes that they belong to."""
        if not 0 <= message.kernel < len(self.parameters) or message.kernel % len(self.versions) != shard:
            raise BadRecord("kernel", f"kernel {message.kernel} does not belong to shard {shard}")
        parameters: NDArray[Any] = decode_array(
            message.parameters, self._dtype, self.parameters.shape[1:], "parameters"
        )
        signed = self._signed.get(shard)
        if signed is not None:
            # The next signed version shows whether the server wrote them.
            signed.add(message.kernel, message.parameters, parameters)
            return
        # An infinite square exceeds the bound as well.
        with np.errstate(over="ignore"):
            norm = float(np.sqrt(np.square(parameters, dtype=np.float64).sum()))
        if not norm <= LARGEST_PARAMETERS:
            text = (
                f"parameters of kernel {message.kernel} have a norm of {norm:g}, at most "
                f"{LARGEST_PARAMETERS:g} is plausible"
            )
            self._implausible[message.kernel] = text
            raise BadRecord("implausible", text)
        self._implausible.pop(message.kernel, None)
        self._staged[shard][message.kernel] = parameters

    def _take_version(self, message: ShardVersion | SignedVersion, shard: int) -> None:
        """Adopt the parameters that came before this version."""
        signed = self._signed.get(shard)
        # Even if the marker is refused, the kernels before it belong to no later version.
        staged, self._staged[shard] = self._staged[shard], {}
        version, message = message, message.marker if isinstance(message, SignedVersion) else message
        try:
            if signed is None and isinstance(version, SignedVersion):
                raise BadRecord(
                    "configuration",
                    "the server signs the model: this federation's members have keys, and nothing that is "
                    "sent here without one counts. Set federation.members and identity.key_file here as well",
                )
            if signed is None:
                self._check(message, shard)
                self._check_plausible(message, shard)
            elif isinstance(version, SignedVersion):
                digests = signed.digests(version)
                self._check(message, shard)
                staged = signed.take(version, digests)
            else:
                raise BadRecord(
                    "unsigned", f"version {message.model_version} of the model comes without a signature"
                )
        except BadRecord as error:
            self._refused[shard] = error.text
            raise
        self._refused.pop(shard, None)
        self._jumped_to.pop(shard, None)
        in_rounds = message.model_version != message.updates
        self.lockstep = (*self.lockstep[:shard], in_rounds, *self.lockstep[shard + 1 :])
        for kernel, parameters in staged.items():
            self.parameters[kernel] = parameters
            self.squared_norms[kernel] = np.square(parameters, dtype=np.float64).sum()
        self.versions = (*self.versions[:shard], message.model_version, *self.versions[shard + 1 :])

    def _check(self, marker: ShardVersion, shard: int) -> None:
        if marker.fingerprint != self._fingerprint or marker.shard != shard:
            raise BadRecord(
                "configuration",
                "the server has another federation name, seed, federation.features (names or their order), "
                "loss, dictionary, features_per_kernel, precision or shards: make [federation], [learning] "
                "and [kernels] here what they are there",
            )
        if marker.dimension != self._dimension:
            raise BadRecord(
                "configuration",
                f"the federation's samples have {marker.dimension} features, this client's {self._dimension}",
            )

    def _check_plausible(self, marker: ShardVersion, shard: int) -> None:
        version, updates = marker.model_version, marker.updates
        # A version has at least one update.
        if not 0 <= version <= updates <= LARGEST_COUNT:
            raise BadRecord(
                "implausible", f"the model's version is {version}, of {updates} updates: that cannot be"
            )
        known = self.versions[shard]
        if known and version > max(known, self._jumped_to.get(shard, 0)) + LARGEST_JUMP:
            # A true jump is accepted with the next version.
            self._jumped_to[shard] = version
            raise BadRecord(
                "implausible",
                f"the model's version is {version} after {known}: who else writes into the model topic?",
            )
