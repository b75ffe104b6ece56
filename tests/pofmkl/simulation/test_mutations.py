"""Faults put into the worker, the client and the server on purpose: the simulation has to find each of
them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mutations import Mutation, after, check_caught, instead
from pofmkl.proof.faults import simulate

from streamfl.pofmkl.client.client_registry import ClientRegistry
from streamfl.pofmkl.client.model import ModelTable
from streamfl.pofmkl.client.pending_samples import PendingSamples
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.client.staleness import StalenessPolicy
from streamfl.pofmkl.client.uploads import Uploads
from streamfl.pofmkl.learning.default_learner import DefaultLearner
from streamfl.pofmkl.learning.paper_learner import PaperLearner
from streamfl.pofmkl.messages import KernelParameters
from streamfl.pofmkl.server.members import ShardMembers
from streamfl.pofmkl.server.role import PofmklServer
from streamfl.pofmkl.server.rounds import OpenRound
from streamfl.records.join import LabelJoin
from streamfl.runtime import tasks as tasks_module
from streamfl.runtime.worker import Worker
from streamfl.testing.faults.transactions import Producer

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_starts")]

# ---- the worker


def sends_before_it_remembers(patch: pytest.MonkeyPatch) -> None:
    def change(_result: Any, self: Any, session: Any, polled: Any, work: Any) -> None:
        self._bus.write(work.step.outputs)
        work.step.outputs = []

    after(patch, Worker, "_process", change)


def keeps_its_state_after_a_refused_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Worker, "_after_refusal", lambda self, refusal: None)

    def change(real: Any, self: Any, session: Any, polled: Any) -> None:
        kept = set(polled.revoked) & set(polled.assigned)
        polled.revoked = [partition for partition in polled.revoked if partition not in kept]
        polled.assigned = [partition for partition in polled.assigned if partition not in kept]
        real(self, session, polled)

    instead(patch, Worker, "_move_tasks", change)


def takes_back_what_is_damaged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tasks_module, "is_damaged", lambda record: False)


# ---- the connector


def takes_no_new_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Producer, "_after_no_answer", lambda self, commit: False)


# ---- the client


def does_not_restore_weights(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PaperLearner, "restore", lambda self, row, remembered: None)
    patch.setattr(DefaultLearner, "restore_part", lambda self, row, key, value: None)


def restored(patch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    """``change`` takes a client that was just restored."""

    def changed(client: Any, self: Any, *arguments: Any) -> Any:
        change(client)
        return client

    after(patch, ClientRegistry, "restore", changed)


def refills_the_bucket_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    def change(client: Any) -> None:
        if client.bucket is not None:
            client.bucket.tokens = client.bucket.depth

    restored(patch, change)


def forgets_an_open_upload(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Uploads, "restore", lambda self, client, record: None)


def does_not_restore_waiting_samples(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PendingSamples, "restore", lambda self, client, slot, sample: None)


def does_not_restore_the_join(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LabelJoin, "restore", lambda self, partition, name, value, content_bytes: None)


def forgets_what_was_learnt(patch: pytest.MonkeyPatch) -> None:
    def change(self: Any, key: Any, now: float) -> None:
        del self._partitions[key.partition].joined[key]
        self._remember(key, None)

    patch.setattr(LabelJoin, "learnt", change)


def does_not_wait_for_the_model(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StalenessPolicy, "may_learn", lambda self, record, versions: True)


def lets_any_number_of_samples_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PofmklClient, "full", property(lambda self: []))


def uses_a_version_that_is_not_complete(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: Any, message: Any, shard: int) -> None:
        real(self, message, shard)
        if isinstance(message, KernelParameters):
            self.parameters[message.kernel] = self._staged[shard][message.kernel]

    instead(patch, ModelTable, "apply", change)


# ---- the server


def does_not_check_sequence_numbers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardMembers, "was_heard", lambda self, name, epoch, sequence: False)


def not_restored(*kinds: bytes) -> Mutation:
    def mutation(patch: pytest.MonkeyPatch) -> None:
        def change(real: Any, self: Any, state: Any) -> None:
            if not state.key.startswith(kinds):
                real(self, state)

        instead(patch, PofmklServer, "restore", change)

    return mutation


def adds_up_in_order_of_arrival(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OpenRound, "in_order", lambda self: [*self.pending.values()])


MUTATIONS: dict[str, Mutation] = {
    "worker: sends before it remembers": sends_before_it_remembers,
    "worker: keeps its state after a refused commit": keeps_its_state_after_a_refused_commit,
    "worker: takes back what is damaged": takes_back_what_is_damaged,
    "connector: no new epoch after an unanswered EndTxn": takes_no_new_epoch,
    "client: weights not restored": does_not_restore_weights,
    "client: bucket refilled at a restart": refills_the_bucket_at_a_restart,
    "client: open upload not restored": forgets_an_open_upload,
    "client: waiting samples not restored": does_not_restore_waiting_samples,
    "client: late labels' samples not restored": does_not_restore_the_join,
    "client: learnt pairs forgotten": forgets_what_was_learnt,
    "client: does not wait for the model": does_not_wait_for_the_model,
    "client: waiting room without bound": lets_any_number_of_samples_wait,
    "client: uses half a version": uses_a_version_that_is_not_complete,
    "server: no sequence check": does_not_check_sequence_numbers,
    "server: pending updates not restored": not_restored(b"pending/"),
    "server: parameters not restored": not_restored(b"kernel/", b"copy/"),
    "server: adds up in order of arrival": adds_up_in_order_of_arrival,
}


# Seeds that catch what few do, or soon, tried before all others: it saves minutes, and decides nothing.
TRIED_FIRST = {
    "worker: sends before it remembers": 1,
    "worker: keeps its state after a refused commit": 1,
    "client: weights not restored": 1,
    "client: waiting samples not restored": 1,
    "server: pending updates not restored": 1,
    "worker: takes back what is damaged": 34,
    "connector: no new epoch after an unanswered EndTxn": 67,
    "client: bucket refilled at a restart": 21,
    "client: waiting room without bound": 3,
    "client: uses half a version": 409,
    "server: adds up in order of arrival": 17,
    "client: open upload not restored": 5,
    "client: does not wait for the model": 1,
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the simulation's worth: what loses, doubles or overdraws fails within 200 seeds, with what it
    did wrong."""
    MUTATIONS[name](monkeypatch)
    check_caught(name, simulate, TRIED_FIRST.get(name, 0))
