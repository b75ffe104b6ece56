"""The SQLite bus under the same faults as the memory bus, and with deliberate bugs."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
from fault_runs import check_every_fault_is_met, run_once
from mutations import Mutation, check_caught, instead
from pofmkl.proof.faults import simulate

from streamfl.runtime.bus import Step
from streamfl.runtime.sqlite.membership import SqliteMembership
from streamfl.runtime.sqlite.session import SqliteSession
from streamfl.testing.faults.fault_rates import FAULTS

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_starts")]

KAFKA_ONLY = {
    "half a commit",
    "changelog late",
    "offsets forgotten",
    "late EndTxn",
    "crash inside a transaction",
}


def test_every_check_holds_and_every_fault_is_met() -> None:
    """Protects sites without Kafka: exactly-once, the lockstep theorem and progress hold for the file as for
    the cluster.

    The file works the same for every system; test_systems.py has a few seeds of each.
    """
    # Seed 13 finds commits of whoever lost its partitions.
    check_every_fault_is_met(simulate, [0, 1, 7, 10, 13], set(FAULTS) - KAFKA_ONLY, "sqlite")


def test_a_seed_is_one_history() -> None:
    """Protects the reproduction of a failure: it does not depend on the process id or the machine's clock."""
    here = run_once(simulate, 1, "sqlite").hash
    program = "from pofmkl.proof.faults import simulate\nprint(simulate(1, 'sqlite').hash)"
    environment = os.environ | {"PYTHONHASHSEED": "1", "OPENBLAS_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == here


def takes_commits_of_whoever_lost_its_partitions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SqliteSession, "_check_ownership", lambda self, connection, step: None)


def leaves_silent_members_in_the_group(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SqliteMembership, "attend", lambda self: self.beat())


def commits_what_is_remembered_without_what_is_sent(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: SqliteSession, step: Step) -> None:
        with self._database.writing() as connection:
            self._store.append(connection, step.outputs)
        step.outputs = []
        real(self, step)

    instead(patch, SqliteSession, "commit", change)


MUTATIONS: dict[str, Mutation] = {
    "takes commits of whoever lost its partitions": takes_commits_of_whoever_lost_its_partitions,
    "leaves silent members in the group": leaves_silent_members_in_the_group,
    "outputs in a transaction of their own": commits_what_is_remembered_without_what_is_sent,
}
# A short run that finds it.
TRIED_FIRST = {
    "takes commits of whoever lost its partitions": 13,
    "leaves silent members in the group": 3,
    "outputs in a transaction of their own": 5,
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_of_the_bus_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the value of the simulation for the file: each bug fails within 200 seeds."""
    MUTATIONS[name](monkeypatch)
    check_caught(f"sqlite: {name}", partial(simulate, bus="sqlite"), TRIED_FIRST[name])
