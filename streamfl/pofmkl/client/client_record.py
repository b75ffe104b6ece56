"""The record ``client/NAME`` of the changelog: the remembered state of one POF-MKL client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from streamfl.encoding.changelog_checks import Time
from streamfl.encoding.wire import Count
from streamfl.roles.rhythm import Rhythm

__all__ = ["ClientRecord", "ClientSnapshot", "UploadRecord"]

# Infinite without a budget.
Tokens = Annotated[float, msgspec.Meta(ge=0)]
Probability = Annotated[float, msgspec.Meta(gt=0, le=1)]


class UploadRecord(msgspec.Struct, array_like=True):
    """An open upload.

    opened_at: when its first label was learnt.
    versions: of the model's shards that its predictions used.
    probability, drawn_bin, kernels: of the bin, drawn before the first label.
    samples: how many labels it contains.
    steps: the sum of their steps, raw numbers (len(kernels), 2 D) in double precision.
    awaited: the client was behind, and waits for the version that holds this upload.
    """

    opened_at: Time
    versions: tuple[Count, ...]
    probability: Probability = 1.0
    drawn_bin: Count = 0
    kernels: tuple[int, ...] = ()
    samples: Count = 0
    steps: bytes = b""
    awaited: bool = False


class ClientRecord(msgspec.Struct, array_like=True):
    """A client.

    name: of the client.
    epoch: identifies one life of its state.
    sequence: the uploads sent in this epoch.
    labels_learnt: on the versions ``learnt_on`` of the model's shards; with ``learnt_on`` None they do not
    count.
    granted: the labels that it may learn on these versions while it is behind.
    behind: whether it was when it learnt last.
    awaited: the shards that its updates went to since.
    uploads_drawn: the uploads begun. It is the position in the sequence of its random numbers.
    tokens, filled_at: of its byte budget.
    upload: its open upload.
    numbers: the learner's numbers for it.
    seen_at: the newest time of its partition's samples when its latest one came, in coarse steps.
    on_version_zero: its predictions from before there was a model.
    sample_rhythm, label_rhythm: how often its samples and labels come.
    """

    name: str
    epoch: Count
    sequence: Count = 0
    labels_learnt: Count = 0
    learnt_on: tuple[Count, ...] | None = None
    uploads_drawn: Count = 0
    tokens: Tokens = 0.0
    filled_at: Time = 0.0
    upload: UploadRecord | None = None
    numbers: bytes = b""
    seen_at: Time = 0.0
    granted: Count = 0
    behind: bool = False
    awaited: tuple[Count, ...] = ()
    on_version_zero: Count = 0
    sample_rhythm: Rhythm = msgspec.field(default_factory=Rhythm)
    label_rhythm: Rhythm = msgspec.field(default_factory=Rhythm)


@dataclass(frozen=True)
class ClientSnapshot:
    """A client's state in the role.

    row: of the client in the learner.
    seen_at: the time of its latest sample, to within 5 seconds.
    silent_from: the time on the worker's clock from which a pause of its samples is unusual; None: not known.
    labelled_at, unlabelled_from: the same of its labels; both None if none has come.
    waiting: how many of its samples, or labels of [labels], wait for the model.
    samples, labels: how many it has predicted and learnt.
    on_version_zero: those predicted before there was a model.
    uploads_begun, uploads_sent: its uploads; those sent are counted from the beginning of its epoch.
    budget: the tokens in its bucket when they last changed, and its depth; None without a budget.
    """

    row: int
    seen_at: float
    waiting: int
    samples: int
    labels: int
    on_version_zero: int
    uploads_begun: int
    uploads_sent: int
    budget: tuple[float, float] | None
    silent_from: float | None
    labelled_at: float | None
    unlabelled_from: float | None
