"""Roles built as an operator builds them, at the largest sizes that their settings allow: what they accept can be written.

How large that is the settings say themselves: the largest size that they do not refuse is looked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from streamfl.pofmkl import practical
from streamfl.pofmkl.messages import MARKER_KEY, kernel_key
from streamfl.pofmkl.roles import ROLES as POFMKL
from streamfl.role import ConfigurationError, Record
from streamfl.testing.bound_laws import what_is_refused
from streamfl.testing.role_laws import Extreme, Subject
from streamfl.vafl.roles import ROLES as VAFL
from streamfl.wire import LONGEST_KEY, LONGEST_NAME, VERSION, encode_array
from tests.laws.test_pofmkl_roles import written

# At the bounds themselves; that there is nothing beyond them is the law's matter on small roles.
LARGEST = [Extreme(LONGEST_NAME * character, 2**53, 999.0, LONGEST_KEY * b"k") for character in "\N{GRINNING FACE}\0"]
# One to come is refused, and there is no clock here.
EPOCH = 1
SAMPLES = {"topic": "samples", "client": "client", "sample_id": "id", "features": "x", "label": "y"}
LABELS = {"topic": "labels", "client": "client", "sample_id": "id", "label": "y"}
LEAST = {"preset": "default", "features_per_kernel": 1}
ONE_KERNEL = {"views": ["standardised"], "bandwidths": [1.0]}


def settings(kind: str, **sections: dict[str, Any]) -> Any:
    """Of a federation "f" with what these sections say besides."""
    roles = {**POFMKL, **VAFL}
    federation = {"name": "f", **({"clients": 3} if kind in POFMKL else {}), **sections.pop("federation", {})}
    return roles[kind].settings(federation=federation, role={"kind": kind}, **sections)


def largest(make: Callable[[int], Any]) -> int:
    """The largest size that is not refused; make: settings of a size from 1."""

    def allowed(size: int) -> bool:
        try:
            made = make(size)
            {**POFMKL, **VAFL}[made.role.kind].build(made)
        except (ConfigurationError, ValueError):
            return False
        return True

    size = 1
    # From below, for what is far too large takes long to be built before it is refused.
    while allowed(2 * size):
        size *= 2
    step = size
    while (step := step // 2) >= 1:
        size += step if allowed(size + step) else 0
    return size


@dataclass(frozen=True)
class Case:
    """make: settings of a size. anybody: records for a role with these settings, that has this fingerprint."""

    make: Callable[[int], Any]
    anybody: Callable[[Any, int, Extreme], Sequence[tuple[str, Record]]]


def client(preset: str, size: str, late: bool = False) -> Case:
    """A client as large as it may be in its inputs' dimension, its kernels, or the features of each."""

    def make(number: int) -> Any:
        bandwidths = [1.0 + place for place in range(number if size == "kernels" else 1)]
        samples = {**SAMPLES, "dimension": number if size == "dimension" else 1}
        if late:
            del samples["label"]
        return settings(
            "pofmkl-client",
            samples=samples,
            learning={"preset": preset, "features_per_kernel": number if size == "features" else 1},
            kernels={"bandwidths": bandwidths, **({"views": ["standardised"]} if preset == "default" else {})},
            **({"labels": LABELS} if late else {}),
        )

    def anybody(made: Any, fingerprint: int, extreme: Extreme) -> Sequence[tuple[str, Record]]:
        dimension, kernels, features = made.samples.dimension, made.kernel_count, made.learning.features_per_kernel
        inputs = [extreme.number] + [0] * (dimension - 1)
        samples = [
            written(extreme.key, {"client": extreme.name, "id": identity, "x": inputs, **({} if late else {"y": label})})
            for identity, label in ((extreme.name, 0.5), (extreme.whole, 1.0), (extreme.name[1:] + "?", extreme.number), ("d", 0.0))
        ]
        labels = [
            written(extreme.key, {"client": extreme.name, "id": identity, "y": extreme.number}, "labels")
            for identity in (extreme.name, extreme.name[1:] + "!", extreme.name[1:] + "?")
            if late
        ]
        row = encode_array(np.full(2 * features, extreme.number, np.float32))
        model = [written(kernel_key(kernel), [VERSION, kernel, row], "model") for kernel in range(kernels)]
        marker = written(MARKER_KEY, [VERSION, fingerprint, dimension, 0, extreme.whole, extreme.whole], "model")
        return [*samples[:2], *labels, *samples[2:], *model, marker, *samples[:1]]

    return Case(make, anybody)


def server(step: str, precision: str) -> Case:
    """A server with as many features a kernel as it may have, and updates until it has taken a snapshot."""

    def make(number: int) -> Any:
        own = {"preset": "paper"} if step == "paper" else {"preset": "default", "server_step": step}
        kernels = {"bandwidths": [1.0], **({} if step == "paper" else {"views": ["standardised"]})}
        return settings(
            "pofmkl-server",
            federation={"features": 1},
            learning={**own, "precision": precision, "features_per_kernel": number},
            kernels=kernels,
        )

    def anybody(made: Any, fingerprint: int, extreme: Extreme) -> Sequence[tuple[str, Record]]:
        length = 2 * made.learning.features_per_kernel
        number = extreme.number if step == "paper" else np.clip(extreme.number, -2.0, 2.0) / np.sqrt(length)
        steps = encode_array(np.full(length, number, precision))
        return [
            written(
                name.encode(),
                [VERSION, fingerprint, 1, name, EPOCH, place, place, extreme.whole, [0], steps],
                "updates",
            )
            for place in range(86 if step == "least-squares" else 3)
            for name in (extreme.name, "b", "c")
        ]

    return Case(make, anybody)


def party(precision: str) -> Case:
    """A party with as many inputs as it may have."""

    def make(number: int) -> Any:
        return settings(
            "vafl-party",
            federation={"parties": ["a", "b"], "embedding_size": 1, "precision": precision},
            party={"name": "a"},
            samples={"topic": "samples", "entity": "entity", "features": "x", "dimension": number},
            learning={"in_flight": 16, "batch_size": 16},
        )

    def anybody(made: Any, fingerprint: int, extreme: Extreme) -> Sequence[tuple[str, Record]]:
        inputs = [extreme.number] + [0] * (made.samples.dimension - 1)
        samples = [written(b"k", {"entity": f"{place}{extreme.name}"[: len(extreme.name)], "x": inputs}) for place in range(18)]
        gradient = encode_array(np.full(1, extreme.number, precision))
        replies = [
            written(name.encode(), [VERSION, fingerprint, name, int(1e9), place + 1, gradient], "gradients")
            for place in range(3)
            for name in [f"{place}{extreme.name}"[: len(extreme.name)]]
        ]
        return [*samples, *replies]

    return Case(make, anybody)


def coordinator(precision: str, parties: int, loss: str, size: str) -> Case:
    """A coordinator with as large embeddings, or as many classes, as it may have."""

    def make(number: int) -> Any:
        classes = {"classes": number if size == "classes" else 2} if loss == "softmax" else {}
        names = [f"p{place}" for place in range(parties)]
        return settings(
            "vafl-coordinator",
            federation={"parties": names, "embedding_size": number if size == "embeddings" else 1, "precision": precision},
            labels={"topic": "labels", "entity": "entity", "label": "y"},
            learning={"loss": loss, "wait_for": parties, **classes},
            head={"kind": "network"},
        )

    def anybody(made: Any, fingerprint: int, extreme: Extreme) -> Sequence[tuple[str, Record]]:
        name, names = extreme.name, made.federation.parties
        values = encode_array(np.full(made.federation.embedding_size, extreme.number, precision))
        embeddings = [
            written(name.encode(), [VERSION, fingerprint, name, EPOCH, place, extreme.whole, values], f"embeddings/{party}")
            for place, party in enumerate([*names, *names], start=1)
        ]
        return [*embeddings, written(b"k", {"entity": name, "y": 1}, "labels"), *embeddings[:1]]

    return Case(make, anybody)


CASES = {
    "client-default-dimension": client("default", "dimension"),
    "client-default-kernels": client("default", "kernels"),
    "client-default-late-dimension": client("default", "dimension", late=True),
    "client-paper-features": client("paper", "features"),
    "client-paper-dimension": client("paper", "dimension"),
    "client-paper-late-dimension": client("paper", "dimension", late=True),
    "server-least-squares": server("least-squares", "float32"),
    "server-least-squares-float64": server("least-squares", "float64"),
    "server-adagrad": server("adagrad", "float32"),
    "server-paper": server("paper", "float64"),
    "party": party("float32"),
    "party-float64": party("float64"),
    "coordinator-one": coordinator("float32", 1, "logistic", "embeddings"),
    "coordinator-many": coordinator("float64", 64, "logistic", "embeddings"),
    "coordinator-classes": coordinator("float32", 2, "softmax", "classes"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_is_accepted_can_be_written_at_the_limits_of_the_settings(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects a role that its settings allow from ending at every start, or once it has learnt enough for its first snapshot."""
    monkeypatch.setattr(practical, "SNAPSHOT_EVERY", 2)
    made = case.make(largest(case.make))
    kind = {**POFMKL, **VAFL}[made.role.kind]
    channels, fingerprint = kind.channels(made), kind.build(made).fingerprint
    decode = {name: source.decode for name, source in (*channels.inputs.items(), *channels.tables.items())}
    subject = Subject(
        make=functools.partial(kind.build, made),
        traffic=st.nothing(),
        anybody=functools.partial(case.anybody, made, fingerprint),
        decode=decode,
    )
    for extreme in LARGEST:
        assert not what_is_refused(subject, subject.anybody(extreme))


@pytest.mark.parametrize(
    ("kind", "sections", "text"),
    [
        ("pofmkl-server", {"learning": {"features_per_kernel": 600}}, "features_per_kernel = 600 takes 2,882,400 bytes.*adagrad"),
    ],
)
def test_what_would_not_fit_is_refused_at_the_start(kind: str, sections: dict[str, Any], text: str) -> None:
    """Protects an operator from a server that ends after 256 updates: its snapshot of a kernel was larger than a record."""
    with pytest.raises(ConfigurationError, match=text):
        {**POFMKL, **VAFL}[kind].build(settings(kind, **sections))
