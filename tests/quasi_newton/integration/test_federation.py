"""Guest, host and coordinator as processes on a real broker, with keys, at 2048 bits: a kill in mid-iteration
changes no bit.

Small, so that it takes a minute on two slow cores: 2 batches of 100 entities, 3 columns and the intercept at
the guest, 4 at the host, 4 epochs. Batches of such a size are not safe in earnest, and the settings have to
say so.
"""

from __future__ import annotations

import functools
import hashlib
import json
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from broker import Broker
from command_line import make_topics
from identities import Keys
from quasi_newton.laws.closed_loop import without_roles
from quasi_newton.makers import problem
from streamfl_process import start_streamfl

from streamfl.configuration.settings import load_settings
from streamfl.contract.role import StateChange
from streamfl.quasi_newton.config import COORDINATOR, GUEST, HOST, QuasiNewtonSettings
from streamfl.quasi_newton.encryption.key_file import make_key_file
from streamfl.quasi_newton.messages import Message, codec
from streamfl.quasi_newton.roles import ROLES
from streamfl.quasi_newton.training.party import PartyTask
from streamfl.quasi_newton.training.training_progress import TRAINED
from streamfl.runtime.bus import Bus, Outgoing, connect

pytestmark = pytest.mark.broker

MEMBERS = {"bank": GUEST, "shop": HOST, "notary": COORDINATOR}
# The first columns of each party, of the set's.
COLUMNS = {"bank": range(3), "shop": range(5, 9)}
ENTITIES, MISSING = 220, 6
ITERATIONS = 8
KEY_BITS = 2048

CONFIGURATION = """
[federation]
name = "{name}"
parties = ["bank", "shop"]
members = "{folder}/members.toml"
[identity]
key_file = "{folder}/{member}.key"
[bus]
url = "{url}"
options = {{ session_timeout_ms = 6000 }}
[role]
kind = "{kind}"
[learning]
batch = 100
min_batch = 80
min_support = 2
memory = 3
curvature_every = 2
epochs = 4
tolerance = 0.0
regularisation = 0.01
[alignment]
entities = 200
settle_seconds = 2.0
limit = 1000
held_out = 0.0
[scoring]
enabled = false
[encryption]
key_bits = {bits}
key_fingerprint = "{fingerprint}"
"""
PARTY = """
secret_file = "{folder}/{member}.secret"
link_secret_file = "{folder}/link.secret"
[party]
name = "{member}"
[samples]
topic = "{name}-{member}"
features = {features}
"""
LABELS = """
[labels]
topic = "{name}-defaults"
label = "default"
"""


class Federation:
    """Its members' settings, keys and processes."""

    def __init__(self, folder: Path, url: str) -> None:
        self.name = f"scores-{uuid.uuid4().hex[:8]}"
        self.url = url
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        keys = Keys(folder, self.name)
        for member, kind in MEMBERS.items():
            keys.add(member, kind, speaks_for=() if kind == COORDINATOR else (member,))
        for secret in ("bank", "shop", "link"):
            path = folder / f"{secret}.secret"
            path.write_bytes(hashlib.sha256(f"{self.name} {secret}".encode()).digest())
            path.chmod(0o600)
        fingerprint = make_key_file(folder / "paillier.json", KEY_BITS).public.fingerprint
        for member, kind in MEMBERS.items():
            text = CONFIGURATION + (
                f'key_file = "{folder}/paillier.json"\n' if kind == COORDINATOR else PARTY
            )
            features = json.dumps([f"x{column}" for column in COLUMNS.get(member, ())])
            (folder / f"{member}.toml").write_text(
                (text + (LABELS if kind == GUEST else "")).format(
                    name=self.name,
                    url=url,
                    member=member,
                    kind=kind,
                    folder=folder,
                    fingerprint=fingerprint,
                    bits=KEY_BITS,
                    features=features,
                )
            )
            make_topics(folder / f"{member}.toml")

    def settings(self, member: str) -> QuasiNewtonSettings:
        return load_settings(self._folder / f"{member}.toml", QuasiNewtonSettings)

    def start(self, member: str) -> None:
        with (self._folder / f"{member}.log").open("ab") as log:
            path = self._folder / f"{member}.toml"
            self._processes[member] = start_streamfl("run", path, stdout=log, stderr=log)

    def is_held_amid(self, member: str, bus: Bus) -> bool:
        """Stop a member where it stands, and see whether the others then wait in an iteration; otherwise it
        goes on."""
        self._processes[member].send_signal(signal.SIGSTOP)
        for _ in range(10):
            asked = self.said(bus, "shop.outputs", "outputs")
            decided = self.said(bus, "bank.decisions", "step")
            if asked and asked[-1] > 0 and asked[-1] not in decided:
                return True
            time.sleep(0.2)
        self._processes[member].send_signal(signal.SIGCONT)
        return False

    def kill(self, member: str) -> None:
        self._processes[member].kill()
        self._processes[member].wait(60)

    def stop(self) -> list[int]:
        running = [process for process in self._processes.values() if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        try:
            return [process.wait(60) for process in running]
        finally:
            for process in self._processes.values():
                process.kill()

    def said(self, bus: Bus, topic: str, kind: str) -> list[int]:
        """The rounds of the messages of this kind that were committed."""
        decode = codec(self.settings("bank").message_bytes).decode
        messages: list[Message] = [decode(record.value) for record in bus.read(f"{self.name}.{topic}")]
        return [message.round for message in messages if message.kind == kind]

    def wait(self, is_so: Callable[[], bool], what: str, seconds: float = 180.0) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            logs = "".join(
                f"{one.name}:\n{one.read_text(errors='replace')[-3000:]}\n"
                for one in self._folder.glob("*.log")
            )
            assert time.monotonic() < deadline, f"no {what}; the processes said:\n{logs}"
            time.sleep(0.3)

    def party(self, bus: Bus, member: str) -> PartyTask:
        """A party as another process would take it up."""
        settings = self.settings(member)
        role: Any = ROLES[settings.role.kind].build(settings)
        role.open(0)
        latest = {record.key or b"": record.value for record in bus.read(f"{self.name}.{member}.state")}
        for key, value in latest.items():
            if value is not None and not key.startswith(b"\0"):
                role.restore(StateChange("state", 0, key, value))
        task: PartyTask = role.task(0)
        return task


@pytest.fixture(name="federation")
def _federation(tmp_path: Path, broker: Broker) -> Iterator[Federation]:
    made = Federation(tmp_path, broker.url)
    yield made
    made.stop()


def write(bus: Bus, federation: Federation, inputs: Any, labels: Any) -> None:
    """What each party has of the entities; the first few are missing at one, the last few at the other."""
    known = {"bank": range(MISSING, ENTITIES), "shop": range(ENTITIES - MISSING)}
    for party, rows in known.items():
        bus.write(
            [
                Outgoing(
                    f"{federation.name}-{party}",
                    b"%d" % row,
                    json.dumps({f"x{column}": inputs[row, column] for column in COLUMNS[party]}).encode(),
                )
                for row in rows
            ]
        )
    outcomes = [
        (b"%d" % row, json.dumps({"default": int(labels[row] > 0)}).encode()) for row in known["bank"]
    ]
    bus.write([Outgoing(f"{federation.name}-defaults", key, value) for key, value in outcomes])


def test_who_is_killed_in_mid_iteration_goes_on_to_the_same_weights(federation: Federation) -> None:
    """Protects a training of hours from the death of any member: the encrypted result is that of the plain
    arithmetic, exactly.

    Each member is killed once, at another iteration.
    """
    inputs, labels = problem(ENTITIES, 23)
    with closing(connect(federation.url, {})) as bus:
        write(bus, federation, inputs, labels)
        for member in MEMBERS:
            federation.start(member)

        for number, victim in enumerate(MEMBERS):
            iterations = 2 * number + 1

            def has_begun(iterations: int = iterations) -> bool:
                return len({one // 2 for one in federation.said(bus, "bank.decisions", "step")}) >= iterations

            federation.wait(has_begun, "iteration")
            federation.wait(functools.partial(federation.is_held_amid, victim, bus), "iteration under way")
            federation.kill(victim)
            federation.start(victim)
        federation.wait(
            lambda: all(federation.party(bus, one).progress.phase == TRAINED for one in COLUMNS),
            "end of the training",
        )
        assert federation.stop() == [0] * 3

        parties = [federation.party(bus, member) for member in COLUMNS]
        rows = [int(name) for name in parties[0].rows.batches]
        assert np.array_equal(parties[0].rows.signs, labels[rows])
        trace = without_roles(parties)
        assert len(trace.visited) == ITERATIONS
        assert any(kept for _, kept in trace.pairs)
        for party, model in zip(parties, trace.model, strict=True):
            assert party.iterates.model is not None
            assert np.array_equal(party.iterates.model, model)
        for member in MEMBERS:
            assert not list(bus.read(federation.settings(member).dead_letters)), member
