"""A coordinator or a party of a small federation, of which a test says only what it is about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import PrivateAttr

from streamfl.configuration.settings import load_settings
from streamfl.learning.optimisers import OptimiserName
from streamfl.records.header_propagation import Carry, carried_nothing
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.coordinator.role import VaflCoordinator
from streamfl.vafl.functions.heads import SQUARE, Head, OutputLoss, SumHead
from streamfl.vafl.functions.networks import Differentiable
from streamfl.vafl.given import CoordinatorGiven, PartyGiven
from streamfl.vafl.party.role import VaflParty
from streamfl.vafl.privacy import Mechanism

__all__ = ["Alignment", "Steps", "make_coordinator", "make_party", "member_sections", "party_settings"]


@dataclass(frozen=True)
class Steps:
    """How a member learns. grows: a step takes up to ``batch_size``, and fewer where learning.batch_size left
    out means that."""

    optimiser: OptimiserName = "adagrad"
    learning_rate: float = 0.03
    batch_size: int = 16
    in_flight: int | None = None
    regularisation: float = 0.0
    grows: bool = False

    @property
    def section(self) -> dict[str, Any]:
        own = {
            name: getattr(self, name)
            for name in ("optimiser", "learning_rate", "in_flight", "regularisation")
        }
        return {**own, "batch_size": None if self.grows else self.batch_size}


@dataclass(frozen=True)
class Alignment:
    """When a coordinator predicts and learns, of [alignment] and [learning]. learning_quorum: None: all
    parties."""

    quorum: int = 1
    learning_quorum: int | None = None
    wait_for: int = 1
    max_staleness: int | None = None
    requests: int = 4
    reply_seconds: float = 10.0
    revise: bool = True
    expiry: float = 3600.0
    limit: int = 100_000
    keep: bool = False

    @property
    def sections(self) -> dict[str, dict[str, Any]]:
        names = ("quorum", "requests", "reply_seconds", "revise", "limit", "keep")
        alignment = {name: getattr(self, name) for name in names} | {"expiry_seconds": self.expiry}
        learning = {
            "quorum": self.learning_quorum,
            "wait_for": self.wait_for,
            "max_staleness": self.max_staleness,
        }
        return {"alignment": alignment, "learning": learning}


class Told(VaflSettings):
    """Settings with a fingerprint that a test's messages have, and a batch of any size beside small steps."""

    _fingerprint: int = PrivateAttr(default=0)
    _batch_size: int = PrivateAttr(default=16)

    @property
    def fingerprint(self) -> int:
        return self._fingerprint

    @property
    def batch_size(self) -> int:
        return self._batch_size


def make_coordinator(
    parties: Sequence[str] = ("bank", "shop"),
    embedding_size: int = 1,
    head: Head | None = None,
    loss: OutputLoss = SQUARE,
    steps: Steps = Steps(),
    alignment: Alignment = Alignment(),
    seed: int = 0,
    dtype: Any = np.float64,
    fingerprint: int = 0,
    gradient_noise: float = 0.0,
    noise_secret: str = "",
    budget: float | None = None,
    ledger_limit: int = 1_000_000,
    without_noise: bool = False,
    patience: float = math.inf,
    carry: Carry = carried_nothing,
) -> VaflCoordinator:
    """Of embeddings that are added up, unless another head is given."""
    federation = {"name": "f", "seed": seed, "parties": list(parties), "embedding_size": embedding_size}
    made = _told(
        {
            "federation": {**federation, "precision": np.dtype(dtype).name},
            "role": {"kind": "vafl-coordinator"},
            "head": {"kind": "network"},
            "labels": {"topic": "labels", "label": "y"},
        },
        fingerprint,
        steps,
        learning=alignment.sections["learning"],
        alignment=alignment.sections["alignment"] | {"patience_seconds": patience},
        privacy={
            "reply_noise": gradient_noise, "budget_mu": budget, "ledger_limit": ledger_limit,
            "without_noise": without_noise
        },
    )  # fmt: skip
    head = SumHead(dtype) if head is None else head
    return VaflCoordinator(made, CoordinatorGiven(head, loss, secret=noise_secret, carry=carry))


def make_party(
    function: Differentiable,
    name: str = "bank",
    inputs: int = 1,
    embedding_size: int = 1,
    steps: Steps = Steps(),
    seed: int = 0,
    fingerprint: int = 0,
    expiry: float = 86_400.0,
    limit: int = 100_000,
    waiting_limit: int = 10_000,
    mechanism: Mechanism | None = None,
    requests: int = 4,
    ledger_limit: int = 1_000_000,
    patience: float = math.inf,
    catch_up_samples: int = 0,
    catch_up_patience: float = math.inf,
    without_noise: bool = False,
    carry: Carry = carried_nothing,
) -> VaflParty:
    """Of raw inputs, whose embeddings all wait for their gradients at once."""
    made = _told(
        {
            "federation": {"name": "f", "seed": seed, "parties": [name], "embedding_size": embedding_size},
            "role": {"kind": "vafl-party"},
            "party": {"name": name},
            "samples": {"topic": "t", "features": [f"x{number}" for number in range(inputs)]},
            "embedding": {"standardise": False},
        },
        fingerprint,
        steps,
        learning={"catch_up_samples": catch_up_samples, "catch_up_patience_seconds": catch_up_patience},
        alignment={
            "expiry_seconds": expiry,
            "limit": limit,
            "requests": requests,
            "patience_seconds": patience,
        },
        privacy={
            "gradient_noise": mechanism and mechanism.gradient_noise,
            "ledger_limit": ledger_limit,
            "without_noise": without_noise,
        },
    )
    role = VaflParty(made, PartyGiven(function, mechanism=mechanism, carry=carry))
    role.waiting_limit = waiting_limit
    return role


def _told(content: dict[str, Any], fingerprint: int, steps: Steps, **sections: dict[str, Any]) -> Told:
    """``sections`` are taken as they are: a test may go beyond what a file may say."""
    made = Told.model_validate(content)
    sections["learning"] |= steps.section
    made = made.model_copy(
        update={name: getattr(made, name).model_copy(update=values) for name, values in sections.items()}
    )
    made._fingerprint, made._batch_size = fingerprint, steps.batch_size
    return made


def party_settings(**sections: dict[str, Any]) -> VaflSettings:
    """Of a party of one feature, alone with embeddings of size 1; with these sections beside."""
    usual = {
        "federation": {"name": "f", "parties": ["a"], "embedding_size": 1},
        "role": {"kind": "vafl-party"},
        "party": {"name": "a"},
        "samples": {"topic": "t", "features": ["x"]},
    }
    return load_settings(None, VaflSettings, {**usual, **sections})


def member_sections(kind: str, party: str = "bank", **sections: dict[str, Any]) -> dict[str, Any]:
    """What the settings file of a coordinator, or of a party of two, says; with these sections beside."""
    shared: dict[str, Any] = {
        "federation": {"name": "credit", "parties": ["bank", "shop"], "embedding_size": 1},
        "role": {"kind": kind},
        "bus": {"commit_interval_ms": 0},
        **sections,
    }
    if kind == "vafl-party":
        samples = {"topic": f"{party}-rows", "features": ["age"]}
        return shared | {"party": {"name": party}, "samples": samples}
    return shared | {"labels": {"topic": "outcomes", "label": "defaulted"}}
