"""Clients and servers at the largest sizes that their settings allow: what they accept can be written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from largest_settings import Case, check_what_is_accepted_can_be_written, written

from streamfl.contract.role import ConfigurationError, Record
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.pofmkl.learning import client_journal
from streamfl.pofmkl.messages import MARKER_KEY, kernel_key
from streamfl.pofmkl.roles import ROLES
from streamfl.testing.role_laws import Extreme

# One to come is refused, and there is no clock here.
EPOCH = 1
SAMPLES = {"topic": "samples", "client": "client", "sample_id": "id", "features": "x", "label": "y"}
LABELS = {"topic": "labels", "client": "client", "sample_id": "id", "label": "y"}


def settings(kind: str, **sections: dict[str, Any]) -> Any:
    """Of a federation "f" with what these sections say besides."""
    federation = {"name": "f", "clients": 3, **sections.pop("federation", {})}
    return ROLES[kind].settings(federation=federation, role={"kind": kind}, **sections)


def client(preset: str, size: str, late: bool = False) -> Case:
    """A client as large as it may be in its inputs' dimension, or the features of each kernel."""

    def make(number: int) -> Any:
        samples = {**SAMPLES, "dimension": number if size == "dimension" else 1}
        if late:
            del samples["label"]
        return settings(
            "pofmkl-client",
            samples=samples,
            learning={"preset": preset, "features_per_kernel": number if size == "features" else 1},
            kernels={
                "bandwidths": [1.0],
                **({"views": ["standardised"]} if preset == "default" else {}),
            },
            **({"labels": LABELS} if late else {}),
        )

    def anybody(made: Any, fingerprint: int, extreme: Extreme) -> Sequence[tuple[str, Record]]:
        dimension = made.samples.dimension
        kernels = made.kernel_count
        features = made.learning.features_per_kernel
        inputs = [extreme.number] + [0] * (dimension - 1)
        samples = [
            written(
                extreme.key,
                {"client": extreme.name, "id": identity, "x": inputs, **({} if late else {"y": label})},
            )
            for identity, label in (
                (extreme.name, 0.5),
                (extreme.whole, 1.0),
                (extreme.name[1:] + "?", extreme.number),
                ("d", 0.0),
            )
        ]
        labels = [
            written(extreme.key, {"client": extreme.name, "id": identity, "y": extreme.number}, "labels")
            for identity in (extreme.name, extreme.name[1:] + "!", extreme.name[1:] + "?")
            if late
        ]
        row = encode_array(np.full(2 * features, extreme.number, np.float32))
        model = [written(kernel_key(kernel), [VERSION, kernel, row], "model") for kernel in range(kernels)]
        marker = written(
            MARKER_KEY, [VERSION, fingerprint, dimension, 0, extreme.whole, extreme.whole], "model"
        )
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


CASES = {
    "client-default-dimension": client("default", "dimension"),
    "client-default-late-dimension": client("default", "dimension", late=True),
    "client-paper-features": client("paper", "features"),
    "server-least-squares-float64": server("least-squares", "float64"),
    "server-adagrad": server("adagrad", "float32"),
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_is_accepted_can_be_written_at_the_limits_of_the_settings(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects a role that its settings allow from ending at every start, or once it has learnt enough for
    its first snapshot."""
    monkeypatch.setattr(client_journal, "SNAPSHOT_EVERY", 2)
    check_what_is_accepted_can_be_written(case)


def test_what_would_not_fit_is_refused_at_the_start() -> None:
    """Protects an operator from a server that ends after 256 updates: its snapshot of a kernel was larger
    than a record."""
    with pytest.raises(ConfigurationError, match=r"features_per_kernel = 600 takes 2,882,400 bytes.*adagrad"):
        ROLES["pofmkl-server"].build(settings("pofmkl-server", learning={"features_per_kernel": 600}))
