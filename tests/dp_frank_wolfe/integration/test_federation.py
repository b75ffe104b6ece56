"""Server and three parties with keys, on a real broker: a kill changes no bit, and a ledger that was put back is refused.

Small, so that it takes less than a minute on two slow cores: windows of 24 entities, three columns each, twenty iterations.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from broker import Broker, free_ports
from command_line import run_command
from identities import Keys
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from streamfl.dp_frank_wolfe.config import PARTY, SERVER, DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.lab import direct
from streamfl.dp_frank_wolfe.messages import Message, codec
from streamfl.dp_frank_wolfe.party_fit import Place
from streamfl.dp_frank_wolfe.public import Public
from streamfl.dp_frank_wolfe.roles import ROLES
from streamfl.dp_frank_wolfe.window import Bounds, Window, freeze
from streamfl.privacy.anchor import Anchor
from streamfl.role import Record
from streamfl.runtime.bus import Bus, Outgoing, connect
from streamfl.settings import load_settings

pytestmark = pytest.mark.broker

PARTIES = ("bank", "clinic", "shop")
COLUMNS = 3
ROWS = 24
ITERATIONS = 20
FEATURES = [f"x{column}" for column in range(COLUMNS)]

CONFIGURATION = """
[federation]
name = "{name}"
parties = ["bank", "clinic", "shop"]
columns = {{ bank = 3, clinic = 3, shop = 3 }}
members = "{folder}/members.toml"
[identity]
key_file = "{folder}/{member}.key"
[bus]
url = "{url}"
options = {{ session_timeout_ms = 6000 }}
[role]
kind = "{kind}"
[metrics]
port = {port}
[window]
rows = 24
fits = 2
[learning]
iterations = 20
columns = 6
sketch_rows = 16
radius = 1.5
[privacy]
epsilon = 4.0
delta = 1e-3
"""
PARTY_SECTIONS = """
secret_file = "{folder}/{member}.secret"
ledger = "{name}-{member}"
ledger_file = "{folder}/{member}.ledger"
[party]
name = "{member}"
[samples]
topic = "{name}-{member}"
features = ["x0", "x1", "x2"]
[labels]
topic = "{name}-outcomes"
label = "y"
[bounds]
bound = 3.0
label_bound = 3.0
"""
SERVER_SECTIONS = """
[bounds]
label_bound = 3.0
"""


class Federation:
    """Its members' settings, secrets, ledgers and processes."""

    def __init__(
        self, folder: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self.name = f"wards-{uuid.uuid4().hex[:8]}"
        self.broker = broker
        self.folder = folder
        self._monkeypatch, self._capture = monkeypatch, capture
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        members = {**dict.fromkeys(PARTIES, PARTY), "server": SERVER}
        keys = Keys(folder, self.name)
        for member, kind in members.items():
            keys.add(member, kind, speaks_for=() if kind == SERVER else (member,))
        self.ports = dict(zip(members, free_ports(len(members)), strict=True))
        for member, kind in members.items():
            secret = folder / f"{member}.secret"
            secret.write_bytes(self.secret(member))
            secret.chmod(0o600)
            text = CONFIGURATION + (PARTY_SECTIONS if kind == PARTY else SERVER_SECTIONS)
            self.config(member).write_text(
                text.format(name=self.name, url=broker.url, kind=kind, member=member, folder=folder, port=self.ports[member])
            )
            if kind == PARTY:
                Anchor.create(folder / f"{member}.ledger", f"{self.name}-{member}", member)
        with closing(connect(broker.url, {})) as bus:
            for member in members:
                self.make_topics(bus, member)

    def config(self, member: str) -> Path:
        return self.folder / f"{member}.toml"

    def secret(self, member: str) -> bytes:
        return hashlib.sha256(f"{self.name} {member}".encode()).digest()

    def settings(self, member: str) -> DPFrankWolfeSettings:
        return load_settings(self.config(member), DPFrankWolfeSettings)

    def call(self, *words: object, code: int = 0) -> str:
        """What a command of an operator prints, in this process."""
        ended, out, said = run_command(self._monkeypatch, self._capture, *words)
        assert ended == code, f"streamfl {words}: {ended}, {out}{said}"
        return out

    def ledger(self, member: str, code: int = 0) -> dict[str, Any]:
        """What `streamfl ledger show` says."""
        found: dict[str, Any] = json.loads(self.call("ledger", "show", self.config(member), "--format", "json", code=code))
        return found

    def start(self, *members: str) -> None:
        for member in members:
            with (self.folder / f"{member}.log").open("ab") as log:
                line = _line("run", str(self.config(member)))
                self._processes[member] = subprocess.Popen(line, env=_environment(), stdout=log, stderr=log)

    def make_topics(self, bus: Bus, member: str) -> None:
        """Those of a member that are missing."""
        settings = self.settings(member)
        specs = {spec.name: replace(spec, partitions=1) for spec in ROLES[settings.role.kind].topics(settings)}
        bus.create([specs[name] for name in specs.keys() - bus.describe(sorted(specs)).keys()])

    def kill_amid(self, member: str, is_awaited: Callable[[], bool]) -> None:
        """Stop a member where it stands, see the others come to where they wait for it, and end it as a power cut does."""
        self._processes[member].send_signal(signal.SIGSTOP)
        self.wait(is_awaited, f"fit under way that waits for {member}")
        self._processes[member].kill()
        self._processes[member].wait(60)

    def stop(self, *members: str) -> list[int]:
        """Exit codes of those of the members that run; of all where none is named."""
        chosen = [self._processes[member] for member in members or self._processes]
        running = [process for process in chosen if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        try:
            return [process.wait(60) for process in running]
        finally:
            for process in chosen:
                process.kill()

    def ready(self, member: str) -> tuple[int, str]:
        """What /readyz answers; 0 where nobody does yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[member]}/readyz", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as answer:
            with answer:
                return answer.code, answer.read().decode()
        except OSError:
            return 0, ""

    def said(self, bus: Bus, topic: str) -> list[Message]:
        """The messages that were committed."""
        decode = codec(self.settings("bank").message_bytes).decode
        return [decode(record.value) for record in bus.read(f"{self.name}.{topic}")]

    def iterations(self, bus: Bus, topic: str, kind: str) -> list[int]:
        return [message.iteration for message in self.said(bus, topic) if message.kind == kind]

    def wait(self, is_so: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            logs = "".join(f"{one.name}:\n{one.read_text(errors='replace')[-3000:]}\n" for one in self.folder.glob("*.log"))
            assert time.monotonic() < deadline, f"no {what}; the processes said:\n{logs}"
            time.sleep(0.2)

    def every_release(self, member: str) -> list[Message]:
        """All that a party ever wrote, in transactions that were aborted too, as somebody who is curious reads it."""
        place = TopicPartition(f"{self.name}.{member}.releases", 0)
        consumer = KafkaConsumer(
            bootstrap_servers=self.broker.address, isolation_level="read_uncommitted", auto_offset_reset="earliest"
        )
        decode = codec(self.settings("bank").message_bytes).decode
        with closing(consumer):
            consumer.assign([place])
            consumer.seek_to_beginning(place)
            end, found = consumer.end_offsets([place])[place], []
            while consumer.position(place) < end:
                found += [decode(record.value) for records in consumer.poll(500).values() for record in records]
        return found

    def replace(self, topic: str, records: Sequence[Record]) -> None:
        """Delete a topic of a party that does not run, make it again, and write these records into it."""
        with closing(KafkaAdminClient(bootstrap_servers=self.broker.address)) as admin:
            admin.delete_topics([topic])
        with closing(connect(self.broker.url, {})) as bus:
            self.wait(lambda: topic not in bus.describe([topic]), f"end of {topic}")
            for member in PARTIES:
                self.make_topics(bus, member)
            bus.write([Outgoing(topic, record.key, record.value, 0, record.headers) for record in records])


def _line(*words: str) -> list[str]:
    return [sys.executable, "-m", "streamfl", *words]


def _environment() -> dict[str, str]:
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1"}


@pytest.fixture(name="federation")
def _federation(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Federation]:
    made = Federation(tmp_path, broker, monkeypatch, capsys)
    yield made
    made.stop()


def names_of(fit: int) -> list[str]:
    return [f"p{fit}-{row:03d}" for row in range(ROWS)]


def table(fit: int) -> tuple[Any, Any]:
    """Columns of all parties, and labels."""
    random = np.random.default_rng(fit)
    inputs = random.normal(size=(ROWS, COLUMNS * len(PARTIES)))
    return inputs, inputs[:, 1] - inputs[:, 4] + 0.1 * random.normal(size=ROWS)


def own_columns(party: str) -> range:
    first = COLUMNS * PARTIES.index(party)
    return range(first, first + COLUMNS)


def write(bus: Bus, federation: Federation, fit: int) -> None:
    """What each party has of a window's entities, and what came of them."""
    inputs, labels = table(fit)
    for party in PARTIES:
        rows = inputs[:, list(own_columns(party))]
        bus.write(
            [
                Outgoing(f"{federation.name}-{party}", name.encode(), json.dumps(dict(zip(FEATURES, row, strict=True))).encode())
                for name, row in zip(names_of(fit), rows.tolist(), strict=True)
            ]
        )
    outcomes = zip(names_of(fit), labels.tolist(), strict=True)
    topic = f"{federation.name}-outcomes"
    bus.write([Outgoing(topic, name.encode(), json.dumps({"y": label}).encode()) for name, label in outcomes])


def direct_model(federation: Federation, fit: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The same fit in one process, by arithmetic alone, with the parties' secrets and ledgers."""
    public, number = Public(federation.settings("server")), fit
    inputs, labels = table(fit)
    bounds = Bounds(np.zeros(COLUMNS), np.full(COLUMNS, 3.0))
    label_bounds = Bounds(np.zeros(1), np.full(1, 3.0))
    windows: dict[str, Window] = {
        party: freeze(inputs[:, list(own_columns(party))], labels, bounds, label_bounds, ROWS) for party in PARTIES
    }

    def place(party: str, window: int, secret: bytes) -> Place:
        ledger = f"{federation.name}-{party} {federation.ledger(party)['identity']}"
        return Place(ledger, federation.name, party, window, federation.secret(party))

    monkeypatch.setattr(direct, "place", place)
    plans = {party: public.fit_plan(party, number) for party in PARTIES}
    done = direct.fit(windows, public.sampling, ITERATIONS, public.sketch(number), plans, delta=1e-3, window=number)
    return done.x


def models(federation: Federation, bus: Bus, version: int) -> dict[str, Any]:
    """By party, the weights of all its columns, in this version."""
    found = {}
    for record in bus.read(f"{federation.name}.model"):
        if record.value is None or (record.key or b"").decode() not in PARTIES:
            continue
        content = json.loads(record.value)
        if content["version"] == version:
            weights = np.zeros(COLUMNS)
            weights[content["columns"]] = content["weights"]
            found[(record.key or b"").decode()] = weights
    return found


def test_who_is_killed_in_mid_fit_goes_on_to_the_same_model_and_a_ledger_put_back_is_refused(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the promise of epsilon from the death of any member and from an old copy of the ledger.

    A party and the server are killed amid the fit: the model is that of the arithmetic alone, exactly; every release, those of
    aborted transactions too, was one content; each entity was charged once. Then a party's ledger is put back to what it was in
    mid-fit: it releases nothing more, is not ready and says why. With the whole ledger it goes on.
    """
    with closing(connect(federation.broker.url, {})) as bus:
        write(bus, federation, 1)
        federation.start(*PARTIES, "server")

        def asked(party: str) -> set[int]:
            return set(federation.iterations(bus, f"{party}.asks", "ask"))

        def answered(party: str) -> set[int]:
            return set(federation.iterations(bus, f"{party}.releases", "answers"))

        federation.wait(lambda: len(asked("clinic")) > 1, "iteration")
        federation.kill_amid("clinic", lambda: bool(asked("clinic") - answered("clinic")))
        federation.start("clinic")
        before = len(answered("clinic"))
        federation.wait(lambda: len(answered("clinic")) > before, "iteration")
        federation.kill_amid("server", lambda: all(asked(party) == answered(party) for party in PARTIES))
        assert len(asked("shop")) < ITERATIONS, "the fit was over before the server could be killed"
        federation.start("server")
        federation.wait(lambda: len(models(federation, bus, 1)) == len(PARTIES), "model")

        expected, found = direct_model(federation, 1, monkeypatch), models(federation, bus, 1)
        assert any(np.any(weights) for weights in expected.values())
        for party in PARTIES:
            assert np.array_equal(found[party], expected[party]), party
        public = Public(federation.settings("server"))
        for party in PARTIES:
            contents: dict[tuple[int, int, str], set[bytes]] = {}
            for message in federation.every_release(party):
                contents.setdefault((message.window, message.iteration, message.kind), set()).add(message.content)
            assert {kind for _, _, kind in contents} == {"entities", "frozen", "answers"}
            assert [place for place, distinct in contents.items() if len(distinct) > 1 and place[2] != "entities"] == []
            shown = federation.ledger(party)
            assert shown["releases"]["fits"] == 1 + ITERATIONS
            assert shown["topic"]["agrees"] is True
            assert shown["topic"]["entities"] == ROWS
            assert shown["topic"]["largest_rho"] == pytest.approx(public.fit_rho(party), rel=1e-12)
        for member in (*PARTIES, "server"):
            assert not list(bus.read(federation.settings(member).dead_letters)), member

        assert federation.stop("clinic") == [0]
        ledger = f"{federation.name}-clinic.ledger"
        whole = list(bus.read(ledger))
        federation.replace(ledger, whole[: len(whole) // 2])
        write(bus, federation, 2)
        federation.start("clinic")
        federation.wait(lambda: federation.ready("clinic")[0] == 503 and "ledger" in federation.ready("clinic")[1], "refusal")
        assert "rolled back" in federation.ready("clinic")[1]
        assert {message.kind for message in federation.every_release("clinic") if message.window == 2} == set()
        assert federation.stop("clinic") == [0]
        assert federation.ledger("clinic", code=4)["topic"]["agrees"] is False

        federation.replace(ledger, whole)
        federation.start("clinic")
        federation.call("dead-letters", federation.config("clinic"), "--reason", "ledger", "--replay")
        federation.wait(lambda: len(models(federation, bus, 2)) == len(PARTIES), "model of the second window")
        assert federation.stop() == [0] * (1 + len(PARTIES))
        expected, found = direct_model(federation, 2, monkeypatch), models(federation, bus, 2)
        for party in PARTIES:
            assert np.array_equal(found[party], expected[party]), party
