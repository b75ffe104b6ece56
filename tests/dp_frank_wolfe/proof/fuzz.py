"""Fuzz targets of DP Frank-Wolfe: its federations, and what must hold of party and server whatever they
receive."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from replayed_target import ReplayedTarget

from streamfl.contract.role import Send
from streamfl.dp_frank_wolfe.config import PARTY, ColumnFederation, DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.messages import codec
from streamfl.dp_frank_wolfe.tools.simulated_members import members
from streamfl.roles.fragment_encoding import MARK
from streamfl.simulation.vertical.members import HEAD
from streamfl.testing.fuzz.entities import entity_label, entity_sample, settings_of
from streamfl.testing.fuzz.federations import FuzzedFederation
from streamfl.testing.fuzz.mutations import FuzzedRecord
from streamfl.testing.fuzz.targets import Decoder, Target, member_targets

__all__ = ["CLINIC", "FEDERATIONS", "PARTIES", "targets"]

CLINIC, INSURER = "clinic", "insurer"
PARTIES = (CLINIC, INSURER)
ROWS = 12
# Entities that are in no window.
LEFT = 3
# More seconds than any message is old as it comes.
OLDEST = 60.0


def _federation(estimator: str, serving: str = "off") -> FuzzedFederation:
    content: dict[str, Any] = {
        "federation": {
            "name": "study",
            "seed": 3,
            "parties": list(PARTIES),
            "columns": dict.fromkeys(PARTIES, 3),
        },
        "window": {"rows": ROWS, "limit": 100},
        "bounds": {"bound": 1.0, "label_bound": 1.0},
        "privacy": {"epsilon": 8.0, "delta": 1e-3, "insecure_test_noise": True},
        "learning": {"estimator": estimator, "columns": 4, "iterations": 4, "sketch_rows": 4},
        "serving": {"mode": serving},
    }
    who = members(ColumnFederation(**content["federation"]))
    for name in PARTIES:
        who[name]["privacy"] = {**content["privacy"], "ledger": "patients"}
    own = settings_of(
        DPFrankWolfeSettings, content, who, {"samples": {"format": "json"}, "labels": {"format": "json"}}
    )

    def written(round_number: int) -> Iterator[tuple[str, FuzzedRecord]]:
        for place in range(ROWS + LEFT) if round_number == 0 else ():
            for name in PARTIES:
                yield name, sample(own[name], f"e-{place}", place)
                yield name, entity_label(own[name], f"e-{place}", math.cos(place), partition=0)
        # The fit is over: these are only predicted.
        for place in range(ROWS + LEFT, ROWS + 2 * LEFT) if round_number == 1 and serving != "off" else ():
            for name in PARTIES:
                yield name, sample(own[name], f"e-{place}", place)

    return FuzzedFederation(own, written, rounds=2, moments=30)


def sample(settings: DPFrankWolfeSettings, entity: str, number: int) -> FuzzedRecord:
    """A record of an entity's columns, as a party's users would write it."""
    return entity_sample(settings, entity, [math.sin(number + place) for place in range(3)], partition=0)


FEDERATIONS = {
    "dp-frank-wolfe": _federation("frank-wolfe"),
    "dp-frank-wolfe-two-round": _federation("two-round"),
    "dp-frank-wolfe-serving": _federation("frank-wolfe", "private"),
}


class DPFrankWolfeTarget(ReplayedTarget):
    """A member at any place of a fit."""

    settings: DPFrankWolfeSettings
    # Computed when an answer first needs them, from the settings and the frozen rows.
    passing = frozenset({"_plans", "_fit", "_sketch"})

    def begin(self) -> None:
        self.codec = codec(self.settings.message_bytes)
        super().begin()

    def let_time_pass(self) -> None:
        super().let_time_pass()
        # The recorded messages are written after the server began. What is older the server asks for anew,
        # and here nobody answers.
        self.now += OLDEST

    def sent(self, send: Send) -> None:
        if send.channel in ("predictions", "model"):
            # JSON has no infinity and no NaN: a number that is neither becomes null there.
            assert b"null" not in send.value
        elif send.value[:1] != MARK:
            self.codec.decode(send.value)

    def goes_on(self) -> None:
        """Checks that the member takes users' records, stays in its balls, and takes the whole fit anew."""
        # Noise that anybody can compute promises nothing: its epsilon is infinite.
        assert all(
            math.isfinite(one.value) for one in self.role.measure() if one.name not in ("epsilon", "rho")
        )
        if self.settings.role.kind == PARTY:
            assert self.feed(sample(self.settings, self.good_name(), 1)) is None
        else:
            public = Public(self.settings)
            norm = sum(float(abs(own).sum()) for own in self.task.estimator.weights.values())
            assert norm <= public.settings.learning.radius * (1 + 1e-9)
        super().goes_on()


def targets(random: Random) -> Mapping[str, Callable[[str], Target]]:
    """Functions that make each target, by name."""
    decoded = FEDERATIONS["dp-frank-wolfe"]
    return {
        **member_targets(random, FEDERATIONS, {CLINIC: DPFrankWolfeTarget, HEAD: DPFrankWolfeTarget}),
        "decode dp-frank-wolfe messages": lambda name: Decoder(
            name, decoded.heard(HEAD), random, decoded.member(HEAD).decode
        ),
    }
