"""A registered client, and an upload that it has open."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from streamfl.contract.seeding import UniformSequence
from streamfl.pofmkl.client.bandwidth import TokenBucket, UpdateCost
from streamfl.pofmkl.client.client_record import ClientRecord, UploadRecord

__all__ = ["Client", "ClientKey", "Upload"]

ClientKey = tuple[int, str]
"""A partition, and the name of a client that has samples in it."""


@dataclass(slots=True, eq=False)
class Client:
    """A registered client.

    record: its remembered state, without the open upload and the learner's numbers.
    row: of the client in the learner.
    number: counts the clients that this worker has registered.
    draws: its random numbers, one per upload.
    bucket: its byte budget, if there is one.
    cost: of its uploads.
    uploading: it has an open upload, or began one in this step.
    limited, share, arrived: set by :class:`~streamfl.pofmkl.client.catch_up.CatchUp`.
    in_version: by shard, the expected version with the client's last update.
    same_written, same_heard: a labelled sample that was written before the one and comes before the other
    changes no rhythm.
    """

    record: ClientRecord
    key: ClientKey
    row: int
    number: int
    draws: UniformSequence
    bucket: TokenBucket | None
    cost: UpdateCost
    uploading: bool = False
    limited: bool = False
    share: float = 0.0
    arrived: int = 0
    in_version: dict[int, int] = field(default_factory=dict)
    same_written: float = -math.inf
    same_heard: float = -math.inf


@dataclass(slots=True, eq=False)
class Upload:
    """An upload that still gathers steps.

    record: its stored state, without the steps.
    kernels_allowed: M.
    uniform: the random number that draws its bin.
    step_rows: the rows that hold the sums of its kernels' steps.
    """

    client: Client
    record: UploadRecord
    kernels_allowed: int = 0
    uniform: float = 0.0
    step_rows: list[int] = field(default_factory=list)
