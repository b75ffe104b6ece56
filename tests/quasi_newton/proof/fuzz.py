"""Fuzzing of quasi-Newton: its federations, and what must hold for guest, host and coordinator whatever
messages they get."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

import msgspec
from quasi_newton.proof import made_up_secrets
from quasi_newton.proof.made_up_secrets import made_up_files
from replayed_target import ReplayedTarget

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.role import Role, Send
from streamfl.quasi_newton.config import QuasiNewtonFederation, QuasiNewtonSettings
from streamfl.quasi_newton.members.coordinator import CoordinatorTask
from streamfl.quasi_newton.members.coordinator_run import TRAINED as DECIDED
from streamfl.quasi_newton.members.party import PartyTask
from streamfl.quasi_newton.members.training_progress import TRAINED
from streamfl.quasi_newton.messages import Message, codec, place_of
from streamfl.quasi_newton.tools.members import members
from streamfl.roles.fragment_encoding import MARK
from streamfl.simulation.vertical.members import HEAD
from streamfl.testing.fuzz.entities import entity_label, entity_sample, settings_of
from streamfl.testing.fuzz.federations import FuzzedFederation
from streamfl.testing.fuzz.member import build_role
from streamfl.testing.fuzz.mutations import FuzzedRecord
from streamfl.testing.fuzz.targets import Decoder, Target, member_targets

__all__ = ["FEDERATIONS", "GUEST_NAME", "HOST_NAME", "MEMBERS", "targets"]

GUEST_NAME, HOST_NAME = "bank", "shop"
MEMBERS = (GUEST_NAME, HOST_NAME, HEAD)
BATCH = 40
# Entities that fill no batch. The model is judged by them, except the first entity, which the host does not
# know.
HELD_OUT = 8


def _federation(
    learning: Mapping[str, Any], scoring: Mapping[str, Any], encrypted: bool = False
) -> FuzzedFederation:
    key = (
        {"key_bits": made_up_secrets.KEY_BITS, "key_fingerprint": made_up_secrets.fingerprint()}
        if encrypted
        else {}
    )
    content: dict[str, Any] = {
        "federation": {"name": "plant", "seed": 3, "parties": [GUEST_NAME, HOST_NAME]},
        "learning": {
            "batch": BATCH,
            "min_batch": BATCH,
            "min_support": 1,
            "curvature_every": 1,
            "memory": 2,
            **learning,
        },
        "alignment": {"entities": BATCH, "settle_seconds": 1.0, "limit": 200, "held_out": 0.0},
        "encryption": {"precision": "paillier" if encrypted else "plain", "study": True, **key},
        # The guest asks once: the next question, about entities that are never common, comes long after.
        "scoring": {"quantum": 1 / 8, "interval_seconds": 1e6, "calibration_entities": 2, **scoring},
    }
    who = members(QuasiNewtonFederation(**content["federation"]), {GUEST_NAME: ["t"], HOST_NAME: ["t"]})
    for name in MEMBERS if encrypted else ():
        link = made_up_secrets.path("link", HOST_NAME)
        files = {"secret_file": made_up_secrets.path(name), "link_secret_file": link}
        files = {"key_file": made_up_secrets.key_path()} if name == HEAD else files
        who[name]["encryption"] = {**content["encryption"], **files}
    own = settings_of(
        QuasiNewtonSettings, content, who, {"samples": {"format": "json"}, "labels": {"format": "json"}}
    )

    def written(_round: int) -> Iterator[tuple[str, FuzzedRecord]]:
        for place in range(BATCH + HELD_OUT):
            yield GUEST_NAME, sample(own[GUEST_NAME], f"e-{place}", place)
            yield GUEST_NAME, entity_label(own[GUEST_NAME], f"e-{place}", float(place % 3 > 0), partition=0)
            if place:
                yield HOST_NAME, sample(own[HOST_NAME], f"e-{place}", place + 1)

    return FuzzedFederation(own, written, rounds=1, moments=100, seconds=10.0, build=_build)


def _build(settings: RoleSettings) -> Role:
    with made_up_files():
        return build_role(settings)


def sample(settings: QuasiNewtonSettings, entity: str, number: int) -> FuzzedRecord:
    """A record of a party's columns of an entity, as a user would write it."""
    return entity_sample(settings, entity, [math.sin(number)], partition=0)


# In the last one the host answers for no version of the model.
FEDERATIONS = {
    "quasi-newton-plain": _federation({"epochs": 3}, {}),
    "quasi-newton-paillier": _federation({"epochs": 3}, {}, encrypted=True),
    "quasi-newton-closed": _federation({"epochs": 1}, {"versions": 0}),
}


class QuasiNewtonTarget(ReplayedTarget):
    """A member at any place of a training, or of the scoring after it."""

    settings: QuasiNewtonSettings

    def begin(self) -> None:
        self.codec = codec(self.settings.message_bytes)
        super().begin()

    def let_time_pass(self) -> None:
        """Let time pass until a party that knows enough reports ready, and a guest with a model asks its
        hosts."""
        self.now += 2 * self.settings.alignment.settle_seconds
        self.tick()

    def awaits(self, channel: str) -> str:
        # The guest asks only when time passes.
        return "asked" if channel.startswith("answers/") else super().awaits(channel)

    def _link(self, channel: str) -> tuple[Any, str] | None:
        """The link of a channel that the member reads, and its topic; None if the channel is not sealed."""
        task = self.task
        if isinstance(task, CoordinatorTask) or channel == "decisions":
            return None
        other = channel.partition("/")[2] or GUEST_NAME
        return task.given.links[other], task.settings.linked(other, channel.partition("/")[0])

    def opened(self, message: Message, channel: str) -> bytes:
        found = self._link(channel)
        header = place_of(msgspec.structs.replace(message, content=b""))
        return message.content if found is None else found[0].open(message.content, found[1], header)

    def sealed(self, message: Message, channel: str, content: bytes) -> bytes:
        found = self._link(channel)
        header = place_of(msgspec.structs.replace(message, content=b""))
        return content if found is None or not content else found[0].seal(content, found[1], header)

    def sent(self, send: Send) -> None:
        if send.channel == "predictions":
            # JSON has no infinity and no NaN: such a number becomes null.
            assert math.isfinite(msgspec.json.decode(send.value)["output"])
        elif send.value[:1] != MARK:
            self.codec.decode(send.value)

    def goes_on(self) -> None:
        """Check that the member still takes users' records, and then the whole training again."""
        # There is no loss before the first epoch.
        assert all(math.isfinite(one.value) for one in self.role.measure() if one.name != "loss")
        if isinstance(self.task, PartyTask):
            name = self.good_name()
            assert self.feed(sample(self.settings, name, 1)) is None
            assert name in self.task.table._entries, "a good sample is not kept"
        super().goes_on()
        task = self.task
        phase, end = (
            (task.progress.phase, TRAINED) if isinstance(task, PartyTask) else (task.run.phase, DECIDED)
        )
        assert phase == end, f"a training of good messages ends in phase {phase}"


def targets(random: Random) -> Mapping[str, Callable[[str], Target]]:
    """The functions that make each fuzz target, by its name."""
    decoded = FEDERATIONS["quasi-newton-plain"]
    return {
        **member_targets(random, FEDERATIONS, dict.fromkeys(MEMBERS, QuasiNewtonTarget)),
        "decode quasi-newton messages": lambda name: Decoder(
            name, decoded.heard(HEAD), random, decoded.member(HEAD).decode
        ),
    }
