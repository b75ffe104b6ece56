"""Parties and coordinators at the largest sizes that their settings allow: what they accept or come to can be
written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st
from largest_settings import Case, check_what_is_accepted_can_be_written, largest, written

from streamfl.contract.role import Record, StateChange
from streamfl.encoding.wire import (
    LARGEST_VALUE,
    LONGEST_NAME,
    MAXIMUM_BYTES,
    VERSION,
    encode_array,
    encoded_size,
)
from streamfl.quasi_newton.config import (
    COORDINATOR,
    GUEST,
    HOST,
    MOST_BATCHES,
    MOST_COLUMNS,
    QuasiNewtonSettings,
)
from streamfl.quasi_newton.encryption.key_file import MOST_KEYS
from streamfl.quasi_newton.encryption.keys import LARGEST_BITS
from streamfl.quasi_newton.encryption.scheme import numbers_to_bytes
from streamfl.quasi_newton.learning.descent import DescentState
from streamfl.quasi_newton.members.coordinator_run import ROUND, CoordinatorRun
from streamfl.quasi_newton.members.party import PartyTask
from streamfl.quasi_newton.members.trained_model import TrainedModel
from streamfl.quasi_newton.members.training_progress import DECIDING, TrainingProgress
from streamfl.quasi_newton.messages import Joined, Ready, content_of
from streamfl.quasi_newton.roles import ROLES
from streamfl.quasi_newton.rows.preparation import Preparation
from streamfl.quasi_newton.rows.preprocessing import MOST_KNOTS, Preprocessing
from streamfl.roles.partitioned_role import PartitionedRole
from streamfl.testing.bound_laws import what_is_refused
from streamfl.testing.role_laws import Extreme, Subject

LONGEST_PARTY = 64
KINDS = {"g": GUEST, "h": HOST, "c": COORDINATOR}
DIGEST = 32 * b"d"


def settings(
    member: str, parties: int = 2, columns: int = 1, **sections: dict[str, Any]
) -> QuasiNewtonSettings:
    """Of the guest, a host or the coordinator of a federation "f", whose parties have names as long as they
    may be."""
    names = [
        f"{'g' if number == 0 else 'h'}{number:02}".ljust(LONGEST_PARTY, "-") for number in range(parties)
    ]
    content: dict[str, Any] = {
        "federation": {"name": "f", "parties": names},
        "role": {"kind": KINDS[member]},
        "encryption": {"precision": "plain"},
        "scoring": {"calibration_entities": 2},
        "learning": {"batch": 2, "min_batch": 2, **sections.pop("learning", {})},
        "alignment": {"entities": 2, "limit": 10, **sections.pop("alignment", {})},
    }
    if member != "c":
        content["party"] = {"name": names[member == "h"]}
        content["samples"] = {"topic": "samples", "features": "x", "dimension": columns}
    if member == "g":
        content["labels"] = {"topic": "labels", "label": "y"}
    return QuasiNewtonSettings.model_validate({**content, **sections})


def users(made: Any, _fingerprint: int, extreme: Extreme) -> Sequence[tuple[str, Record]]:
    """Columns and labels of some entities with names as long as they may be."""
    names = [f"{place}{extreme.name}"[: len(extreme.name)].encode() for place in range(4)]
    row = [extreme.number] + [0.1] * (made.samples.dimension - 1)
    records = [written(name, {"x": row}) for name in names]
    return [*records, *(written(name, {"y": 1}, "labels") for name in names if made.labels is not None)]


def said(
    party: str, fingerprint: int, kind: str, content: bytes, *at: int, alignment: bytes = b""
) -> tuple[str, Record]:
    """What a party uploads. at: run and round."""
    return written(None, [VERSION, fingerprint, party, *at, kind, alignment, content], f"uploads/{party}")


def begun(made: Any, fingerprint: int, alignment: bytes = DIGEST) -> Sequence[tuple[str, Record]]:
    """All parties are ready, and then have their rows."""
    parties, rows = made.federation.parties, content_of(Joined(MOST_COLUMNS, 1))
    ready = content_of(Ready(2**53, b""))
    return [
        *(said(party, fingerprint, "ready", ready, 0, 0) for party in parties),
        *(said(party, fingerprint, "joined", rows, 1, 0, alignment=alignment) for party in parties),
    ]


def products(made: Any, fingerprint: int, pairs: int, run: int, number: int) -> Sequence[tuple[str, Record]]:
    """What the coordinator opens in a round."""
    parties, curvature = made.federation.parties, number % 2
    found = []
    for party in parties:
        vector = numbers_to_bytes([1] * (MOST_COLUMNS + (party == parties[0] and not curvature)))
        found.append(said(party, fingerprint, "gradient", vector, run, number, alignment=DIGEST))
    sums = numbers_to_bytes([1] * (4 * pairs + 4 if curvature else 2 * pairs + 2))
    return [*found, said(parties[0], fingerprint, "sums", sums, run, number, alignment=DIGEST)]


CASES = {
    "guest-columns": Case(lambda size: settings("g", columns=size), users, lambda made: made.fingerprint),
    "host-columns": Case(lambda size: settings("h", columns=size), users, lambda made: made.fingerprint),
    "guest-parties": Case(lambda size: settings("g", size), users, lambda made: made.fingerprint),
    "coordinator-parties": Case(
        lambda size: settings("c", 1 + size),
        lambda made, fingerprint, _: [*begun(made, fingerprint), *products(made, fingerprint, 0, 1, 0)],
        lambda made: made.fingerprint,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_is_accepted_can_be_written_at_the_limits_of_the_settings(case: Case) -> None:
    """Protects a member that its settings allow from ending at every start."""
    check_what_is_accepted_can_be_written(case)


class Later(PartitionedRole[Any]):
    """A role whose partition opens with something remembered."""

    before: dict[bytes, bytes]

    def open(self, partition: int) -> None:
        super().open(partition)
        for key, value in self.before.items():
            self.restore(StateChange("state", partition, key, value))


def coordinator(made: QuasiNewtonSettings, before: dict[bytes, bytes]) -> Subject:
    """With this remembered."""

    def make() -> Later:
        role = ROLES[COORDINATOR].build(made)
        role.__class__ = Later
        assert isinstance(role, Later)
        role.before = before
        return role

    inputs = ROLES[COORDINATOR].channels(made).inputs
    return Subject(make, st.nothing(), lambda _: [], {name: one.decode for name, one in inputs.items()})


def test_the_end_of_the_longest_epoch_can_be_written() -> None:
    """Protects a coordinator from ending in the middle of a training: it remembers the losses of as many
    batches, and products of as many pairs, as settings allow.
    """

    def make(size: int) -> QuasiNewtonSettings:
        learning = {"batch": 1, "min_batch": 1, "memory": 100, "curvature_every": 1}
        return settings("c", 64, learning=learning, alignment={"entities": 1, "limit": size})

    made = make(largest(make))
    batches, side, number = made.alignment.limit, 2 * made.learning.memory, 2 * (made.alignment.limit - 1)
    assert batches == MOST_BATCHES
    run = CoordinatorRun(
        2**53, ROUND, number, {}, dict.fromkeys(made.federation.parties, MOST_COLUMNS), DIGEST, batches
    )
    run.losses = [1 / 3] * (batches - 1)
    # Each step its own curvature, and orthogonal to the others.
    gram = np.kron(np.ones((2, 2)), np.eye(made.learning.memory))
    descent = DescentState(side, encode_array(gram), 1 / 3, 0, 0, 0, False, False)
    state = {b"run": msgspec.msgpack.encode(run), b"descent": msgspec.msgpack.encode(descent)}
    assert len(state[b"run"]) > 9 * (batches - 1)
    rounds = [
        record
        for at in (number, number + 1)
        for record in products(made, made.fingerprint, made.learning.memory, 2**53, at)
    ]
    assert not what_is_refused(coordinator(made, state), rounds)


@pytest.mark.parametrize("size", [33, LARGEST_VALUE - 300])
def test_no_party_makes_the_coordinator_remember_what_cannot_be_written(size: int) -> None:
    """Protects the coordinator from one party: whatever a party says that its alignment is, it is no longer
    than a digest."""
    made = settings("c", 64)
    records = begun(made, made.fingerprint, size * b"a")
    refused = what_is_refused(coordinator(made, {}), records)
    assert len(refused) == len(made.federation.parties)


def check_remembered(made: QuasiNewtonSettings, come_to: Callable[[PartyTask], object]) -> PartyTask:
    """What a party comes to can be written, and taken back by the one that is returned."""
    role, successor = (ROLES[made.role.kind].build(made) for _ in range(2))
    role.open(0)
    successor.open(0)
    assert isinstance(role, PartitionedRole)
    assert isinstance(successor, PartitionedRole)
    come_to(role.task(0))
    changes = list(role.changed_state())
    assert changes
    for change in changes:
        assert encoded_size(change.key, change.value) <= MAXIMUM_BYTES, change.key
        successor.restore(change)
    task: PartyTask = successor.task(0)
    return task


@pytest.mark.parametrize("member", ["g", "h"])
def test_a_round_and_a_model_of_the_most_columns_can_be_written(member: str) -> None:
    """Protects a party from ending in its first training: vectors, a pair and a model of as many columns as
    settings allow."""
    made = settings(member, columns=largest(lambda size: settings(member, columns=size)))
    columns = made.required_samples("a party").samples.dimension or 0
    assert columns == MOST_COLUMNS - 1
    vector = np.full(columns + (member == "g"), 1 / 3)

    def come_to(task: PartyTask) -> None:
        iterates, content = task.iterates, encode_array(vector)
        iterates.begin(np.zeros((1, columns)), np.zeros(1, np.bool_), vector, 1)
        iterates.own.step(vector, np.array([0.1]))
        iterates.keep_pair(vector, vector)
        iterates.end_epoch()
        modulus, told = LARGEST_BITS // 8 * b"n", [34 * b"k"] * MOST_KEYS
        task.progress.become(
            TrainingProgress(
                2**53,
                DECIDING,
                2**53,
                DIGEST,
                modulus,
                2**53,
                DIGEST,
                content,
                content,
                content,
                "",
                True,
                told,
            )
        )
        task.exchange.remember()
        knots = [np.full((MOST_KNOTS, 2), 1 / 3)] * columns
        own = vector[:columns]
        preprocessing = Preprocessing("rank", own, own, own, knots=knots)
        preparation = Preparation(preprocessing, list(range(columns)))
        task.rows.fix(preparation)
        task._latest.keep(TrainedModel(2**53, vector, preparation, task.settings.kinds.inputs, member == "g"))

    task = check_remembered(made, come_to)
    assert task.trained is not None
    assert np.array_equal(task.trained.weights, vector)
    assert task.iterates.model is not None
    assert task.rows.preparation is not None


@pytest.mark.parametrize("longest", [True, False])
def test_the_largest_batches_can_be_written(longest: bool) -> None:
    """Protects a party from ending as its oldest batch gives way: of each name a digest is kept, all in one
    record.

    longest: fewer of the longest names there are.
    """

    def make(size: int) -> QuasiNewtonSettings:
        learning = {"batch": size, "min_batch": 1}
        return settings("g", learning=learning, alignment={"entities": size, "limit": size})

    made = make(1_000 if longest else largest(make))
    size = made.learning.batch
    names = [
        f"{number}{LONGEST_NAME * chr(0x1F600)}"[:LONGEST_NAME] if longest else f"{number}"
        for number in range(2 * size)
    ]

    def come_to(task: PartyTask) -> None:
        task.rows.batches.add(names, np.zeros((2 * size, 1)), np.ones(2 * size, np.int8))

    task = check_remembered(made, come_to)
    assert list(task.learnt) == names[size:]
    assert names[0] in task.learnt
