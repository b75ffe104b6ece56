"""A party that is driven by hand-made messages, and may end at any point and be taken up again."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from streamfl.contract.role import (
    BadRecord,
    Received,
    Record,
    Rejection,
    Send,
    StateChange,
    Work,
    receive_at_once,
)
from streamfl.dp_frank_wolfe.config import PARTY, DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.messages import SERVER_NAME, Ask, FittedModel, Message, codec, content_of
from streamfl.dp_frank_wolfe.party.manifest import digest_of_rows, manifest_content
from streamfl.dp_frank_wolfe.party.role import PartyTask
from streamfl.dp_frank_wolfe.roles import ROLES
from streamfl.encoding.wire import VERSION
from streamfl.privacy.anchor import Anchor
from streamfl.roles.partitioned_role import PartitionedRole

ROWS, COLUMNS, OTHERS = 20, 4, 3
NAMES = [f"person {number:02}" for number in range(ROWS)]
State = dict[tuple[str, bytes], bytes]


def settings(folder: Path | None = None, **sections: dict[str, Any]) -> DPFrankWolfeSettings:
    """Of party ``a``, whose other is ``b``. folder: of its ledger file and its secret; None: nothing outlasts
    the process."""
    privacy: dict[str, Any] = {
        "epsilon": 2.0,
        "delta": 1e-3,
        "ledger": "people",
        **sections.pop("privacy", {}),
    }
    if folder is None:
        privacy = {"insecure_test_noise": True, **privacy}
    else:
        privacy |= {"secret_file": str(secret(folder)), "ledger_file": str(folder / "ledger")}
        if not (folder / "ledger").exists():
            Anchor.create(folder / "ledger", privacy["ledger"], "a")
    given: dict[str, dict[str, Any]] = {
        "role": {"kind": PARTY},
        "federation": {"name": "f", "parties": ["a", "b"], "columns": {"a": COLUMNS, "b": OTHERS}},
        "party": {"name": "a"},
        "samples": {"topic": "a-samples", "features": [f"x{number}" for number in range(COLUMNS)]},
        "labels": {"topic": "labels", "label": "y"},
        "window": {"rows": ROWS, "limit": 3 * ROWS},
        "learning": {"estimator": "frank-wolfe", "iterations": 6, "columns": 4, "sketch_rows": 8},
    }
    for name, content in sections.items():
        given[name] = {**given.get(name, {}), **content}
    return DPFrankWolfeSettings(**given, privacy=privacy)


def secret(folder: Path) -> Path:
    path = folder / "secret"
    if not path.exists():
        path.touch(0o600)
        path.write_bytes(bytes(range(64)))
    return path


def table(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    features = random.uniform(-1, 1, (ROWS, COLUMNS))
    return features, np.clip(0.8 * features[:, 1] + 0.1 * random.normal(size=ROWS), -1, 1)


@dataclass
class Driver:
    """One partition. state: what the changelogs hold. sent: every message that left, committed or not.

    numbers: of entities that were announced when a manifest was made.
    """

    settings: DPFrankWolfeSettings
    state: State = field(default_factory=dict)
    sent: list[Message] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.public = Public(self.settings)
        self.codec = codec(self.settings.message_bytes)
        self.channels = ROLES[PARTY].channels(self.settings)
        self.start()

    @property
    def task(self) -> PartyTask:
        return self.role.task(0)

    def start(self) -> None:
        """A worker begins, with what the changelogs hold, and gives the tick that is due then."""
        self.role: PartitionedRole[PartyTask] = ROLES[PARTY].build(self.settings)
        self.role.open(0)
        # A worker takes back one changelog after the other.
        for channel in self.channels.changelogs:
            for (place, key), value in self.state.items():
                if place == channel:
                    self.role.restore(StateChange(channel, 0, key, value))
        self.feed([])

    def feed(self, batch: list[Received], commit: bool = True) -> list[Message]:
        """Take messages, or a tick. Returns what is sent. commit: False: the worker is killed behind it."""
        found = []
        for reply in receive_at_once(self.role, batch, self.now):
            if isinstance(reply, Send):
                found.append(self.codec.decode(reply.value))
                self.sizes.append(len(reply.value))
            else:
                self.rejections.append(reply)
        self.sent += found
        if commit:
            for change in self.role.changed_state():
                self.state.pop((change.channel, change.key), None)
                if change.value is not None:
                    self.state[change.channel, change.key] = change.value
        return found

    def killed_after_noting(self, received: Received) -> None:
        """The worker takes a message, does the work that it leads to, and is killed before anything comes of
        that."""
        for reply in self.role.receive([received], self.now):
            assert isinstance(reply, Work)
            reply.function(reply.content)

    def record(self, channel: str, key: str, value: bytes | None) -> Received:
        one = self.channels.inputs[channel]
        record = Record(one.topic, 0, 0, key.encode(), value, (), self.now)
        return Received(channel, one.decode(record), record)

    def sample(self, name: str, columns: Any) -> Received:
        content = {f"x{number}": value for number, value in enumerate(columns)}
        return self.record("samples", name, msgspec.json.encode(content))

    def label(self, name: str, value: Any) -> Received:
        return self.record("labels", name, msgspec.json.encode({"y": value}))

    def rows(self, seed: int = 0, names: list[str] = NAMES) -> list[Received]:
        """All records of a table."""
        features, labels = table(seed)
        batch = [self.sample(name, row.tolist()) for name, row in zip(names, features, strict=True)]
        return batch + [self.label(name, float(label)) for name, label in zip(names, labels, strict=True)]

    def server(self, kind: str, window: int, iteration: int, content: Any, **others: Any) -> Received:
        given = content if isinstance(content, bytes) else content_of(content)
        header = {"fingerprint": self.public.fingerprint, "sender": SERVER_NAME, **others}
        message = Message(
            VERSION, header["fingerprint"], header["sender"], window, iteration, kind, 0, b"", given
        )
        return self.record("asks", "", self.codec.encode(message))

    def manifest(self, window: int = 1, names: list[str] = NAMES) -> Received:
        self.numbers |= {name: number for number, name in self.task.table.numbered.items()}
        content = manifest_content({name: self.numbers.get(name, 0) for name in names}, digest_of_rows(names))
        return self.server("manifest", window, 0, content)

    def ask(self, iteration: int, own: Any = None, others: Any = None, window: int = 1) -> Received:
        numbers = self.settings.sketch_numbers
        return self.server(
            "ask", window, iteration, ask_of(own, np.zeros(numbers) if others is None else others)
        )

    def model(self, own: Any = None, window: int = 1) -> Received:
        columns, weights = sparse(own)
        return self.server("model", window, 0, FittedModel(columns, weights))

    def begun(self) -> Driver:
        """With a window that is frozen."""
        self.feed(self.rows())
        self.feed([])
        self.feed([self.manifest()])
        return self


def sparse(own: Any) -> tuple[bytes, bytes]:
    weights = np.zeros(COLUMNS) if own is None else np.array(own, dtype=float)
    active = np.flatnonzero(weights)
    return active.astype("<u4").tobytes(), weights[active].astype("<f8").tobytes()


def ask_of(own: Any, others: Any) -> Ask:
    return Ask(*sparse(own), np.asarray(others, dtype="<f8").tobytes())


def reason(driver: Driver, received: Received) -> str | None:
    """Why a message is refused; nothing may have changed then."""
    before, count = dict(driver.state), len(driver.rejections)
    sent = driver.feed([received])
    if len(driver.rejections) == count:
        return None
    error = driver.rejections[-1].error
    assert isinstance(error, BadRecord)
    assert sent == []
    assert driver.state == before
    return error.reason
