"""Server and three parties with keys, as processes on a real broker: their settings, what they read, and what
has to come of it.

Small: windows of 24 entities, three columns each, twenty iterations.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import signal
import subprocess
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
from dp_frank_wolfe.proof.equal_shares import marginal, two_round
from identities import Keys
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from scraped import scraped
from streamfl_process import start_streamfl

from streamfl.configuration.settings import load_settings
from streamfl.contract.role import Record
from streamfl.dp_frank_wolfe.config import PARTY, SERVER, DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.messages import Message, codec
from streamfl.dp_frank_wolfe.party.fit import ReleaseContext
from streamfl.dp_frank_wolfe.party.window import Bounds, Window, freeze
from streamfl.dp_frank_wolfe.privacy.ledger import PREDICTIONS
from streamfl.dp_frank_wolfe.roles import ROLES
from streamfl.dp_frank_wolfe.tools import direct
from streamfl.dp_frank_wolfe.tools.centring import centre_for
from streamfl.privacy.anchor import RECORD_BYTES, Anchor
from streamfl.runtime.bus import Bus, Outgoing, connect

PARTIES = ("bank", "clinic", "shop")
COLUMNS = 3
ROWS = 24
ITERATIONS = 20
SESSIONS = {"kafka": "session_timeout_ms", "kafka+librdkafka": '"session.timeout.ms"'}
FEATURES = [f"x{column}" for column in range(COLUMNS)]

# What a party releases for what the server says.
LED_TO = {"manifest": "frozen", "ask": "answers", "choose": "chosen", "rows": "products"}

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
options = {{ {session} = 6000 }}
[role]
kind = "{kind}"
[metrics]
port = {port}
[window]
rows = 24
fits = 2
[learning]
estimator = "{estimator}"
iterations = 20
columns = 6
sketch_rows = 16
radius = 1.5
[privacy]
epsilon = 4.0
delta = 1e-3
{party}
[serving]
mode = "{serving}"
"""
PRIVACY = """
secret_file = "{folder}/{member}.secret"
ledger = "{name}-{member}"
ledger_file = "{folder}/{member}.ledger"
"""
PARTY_SECTIONS = """
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
    """Its members' settings, secrets, ledgers and processes.

    scheme, estimator, serving: ``bus.url``'s, ``learning.estimator`` and ``serving.mode``.
    """

    def __init__(
        self,
        folder: Path,
        broker: Broker,
        monkeypatch: pytest.MonkeyPatch,
        capture: pytest.CaptureFixture[str],
        scheme: str = "kafka",
        estimator: str = "frank-wolfe",
        serving: str = "off",
    ) -> None:
        self.name = f"wards-{uuid.uuid4().hex[:8]}"
        self.broker = broker
        self.url = f"{scheme}://{broker.address}"
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
            given = {
                "name": self.name,
                "member": member,
                "folder": folder,
                "port": self.ports[member],
                "kind": kind,
            }
            given |= {
                "url": self.url,
                "session": SESSIONS[scheme],
                "estimator": estimator,
                "serving": serving,
            }
            given["party"] = PRIVACY.format(**given) if kind == PARTY else ""
            text = CONFIGURATION + (PARTY_SECTIONS if kind == PARTY else SERVER_SECTIONS)
            self.config(member).write_text(text.format(**given))
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
        found: dict[str, Any] = json.loads(
            self.call("ledger", "show", self.config(member), "--format", "json", code=code)
        )
        return found

    def start(self, *members: str) -> None:
        for member in members:
            with (self.folder / f"{member}.log").open("ab") as log:
                self._processes[member] = start_streamfl("run", self.config(member), stdout=log, stderr=log)

    def make_topics(self, bus: Bus, member: str) -> None:
        """Those of a member that are missing."""
        settings = self.settings(member)
        specs = {
            spec.name: replace(spec, partitions=1) for spec in ROLES[settings.role.kind].topics(settings)
        }
        bus.create([specs[name] for name in specs.keys() - bus.describe(sorted(specs)).keys()])

    def kill_amid(self, member: str, is_awaited: Callable[[], bool]) -> None:
        """Stop a member where it stands, see the others come to where they wait for it, and end it as a power
        cut does."""
        self._processes[member].send_signal(signal.SIGSTOP)
        self.wait(is_awaited, f"fit under way that waits for {member}")
        self.kill(member)

    def kill(self, member: str) -> None:
        """End a member as a power cut does."""
        self._processes[member].kill()
        self._processes[member].wait(60)

    def stand(self, member: str, still: bool) -> None:
        """Stop a member where it stands, or let it go on. Processes that work for it are not stopped."""
        self._processes[member].send_signal(signal.SIGSTOP if still else signal.SIGCONT)

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

    def kill_between_note_and_commit(self, bus: Bus, member: str, kind: str) -> None:
        """Start a party, and end it when its first release of a kind is in its ledger file and nowhere else.

        While the file's lock is held here a note waits. Then the party is stopped, but for the process that
        writes the note."""
        file, noted = self.folder / f"{member}.ledger", ""
        with file.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            self.start(member)
            while noted != kind:
                self.stand(member, still=False)
                self.wait(lambda: _is_waited_for(file), f"note of {member}")
                self.stand(member, still=True)
                size = file.stat().st_size
                fcntl.flock(held, fcntl.LOCK_UN)
                self.wait(lambda size=size: file.stat().st_size > size, f"link of {member}")  # type: ignore[misc]
                fcntl.flock(held, fcntl.LOCK_EX)
                lane = file.read_bytes()[-RECORD_BYTES] - 1
                noted = (
                    "partial" if lane == PREDICTIONS else LED_TO[self.said(bus, f"{member}.asks")[-1].kind]
                )
            assert kind not in {one.kind for one in self.said(bus, f"{member}.releases")}
            self.kill(member)

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

    def metric(self, member: str, name: str) -> float:
        """What /metrics has of a figure; NaN where nobody answers yet."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.ports[member]}/metrics", timeout=5
            ) as answer:
                return scraped(answer.read().decode(), name)
        except OSError:
            return math.nan

    def said(self, bus: Bus, topic: str) -> list[Message]:
        """The messages that were committed."""
        decode = codec(self.settings("bank").message_bytes).decode
        return [decode(record.value) for record in bus.read(f"{self.name}.{topic}")]

    def iterations(self, bus: Bus, topic: str, kind: str) -> list[int]:
        return [message.iteration for message in self.said(bus, topic) if message.kind == kind]

    def wait(self, is_so: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            logs = "".join(
                f"{one.name}:\n{one.read_text(errors='replace')[-3000:]}\n"
                for one in self.folder.glob("*.log")
            )
            assert time.monotonic() < deadline, f"no {what}; the processes said:\n{logs}"
            time.sleep(0.2)

    def every_release(self, member: str) -> list[Message]:
        """All that a party ever wrote, in transactions that were aborted too, as somebody who is curious
        reads it."""
        place = TopicPartition(f"{self.name}.{member}.releases", 0)
        consumer = KafkaConsumer(
            bootstrap_servers=self.broker.address,
            isolation_level="read_uncommitted",
            auto_offset_reset="earliest",
        )
        decode = codec(self.settings("bank").message_bytes).decode
        with closing(consumer):
            consumer.assign([place])
            consumer.seek_to_beginning(place)
            end, found = consumer.end_offsets([place])[place], []
            while consumer.position(place) < end:
                found += [
                    decode(record.value) for records in consumer.poll(500).values() for record in records
                ]
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


def _is_waited_for(file: Path) -> bool:
    """Whether somebody waits for the lock of a file."""
    place = f":{file.stat().st_ino} "
    return any("->" in line and place in line for line in Path("/proc/locks").read_text().splitlines())


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
    show(bus, federation, fit)
    outcomes = zip(names_of(fit), table(fit)[1].tolist(), strict=True)
    topic = f"{federation.name}-outcomes"
    bus.write([Outgoing(topic, name.encode(), json.dumps({"y": label}).encode()) for name, label in outcomes])


def show(bus: Bus, federation: Federation, fit: int) -> None:
    """What each party has of these entities, without what came of them."""
    inputs, _ = table(fit)
    for party in PARTIES:
        rows = inputs[:, list(own_columns(party))]
        bus.write(
            [
                Outgoing(
                    f"{federation.name}-{party}",
                    name.encode(),
                    json.dumps(dict(zip(FEATURES, row, strict=True))).encode(),
                )
                for name, row in zip(names_of(fit), rows.tolist(), strict=True)
            ]
        )


def direct_model(federation: Federation, fit: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The same fit in one process, by arithmetic alone, with the parties' secrets and ledgers."""
    public, number = Public(federation.settings("server")), fit
    inputs, labels = table(fit)
    bounds = Bounds(np.zeros(COLUMNS), np.full(COLUMNS, 3.0))
    label_bounds = Bounds(np.zeros(1), np.full(1, 3.0))
    windows: dict[str, Window] = {
        party: freeze(inputs[:, list(own_columns(party))], labels, bounds, label_bounds, ROWS)
        for party in PARTIES
    }

    def place(party: str, window: int, secret: bytes) -> ReleaseContext:
        ledger = f"{federation.name}-{party} {federation.ledger(party)['identity']}"
        return ReleaseContext(ledger, federation.name, party, window, federation.secret(party))

    windows = centre_for(public, windows, lambda party: place(party, number, b"")).windows
    learning = public.settings.learning
    if learning.estimator != "frank-wolfe":
        call = marginal if learning.estimator == "marginal" else two_round
        cost = public.estimator_cost(PARTIES[0]) * len(PARTIES)
        return call(
            windows, cost, learning.columns, learning.radius, delta=1e-3, window=number, place=place
        ).x
    monkeypatch.setattr(direct, "place", place)
    plans = {party: public.fit_plan(party, number) for party in PARTIES}
    done = direct.fit(
        windows, public.sampling, ITERATIONS, public.sketch(number), plans, delta=1e-3, window=number
    )
    return done.x


def models(federation: Federation, bus: Bus, version: int) -> dict[str, Any]:
    """By party, the weights of all its columns, in this version."""
    found = {}
    for party, content in _published(federation, bus, version):
        weights = found[party] = np.zeros(COLUMNS)
        weights[content["columns"]] = content["weights"]
    return found


def intercept(federation: Federation, bus: Bus, version: int) -> float:
    """Of the model of this version, as all of its parts say it."""
    (found,) = {content["intercept"] for _, content in _published(federation, bus, version)}
    return float(found)


def _published(federation: Federation, bus: Bus, version: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for record in bus.read(f"{federation.name}.model"):
        if record.value is None or (record.key or b"").decode() not in PARTIES:
            continue
        content = json.loads(record.value)
        if content["version"] == version:
            yield (record.key or b"").decode(), content
