"""Server and parties with keys, on the memory bus: nobody else spends a budget or changes a model, and the
fit goes on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest
from dp_frank_wolfe.federations import COLUMNS, ROWS, SERVER_MEMBER, settings_of
from identities import Keys, again

from streamfl.cli.named_topics import find_topic
from streamfl.cli.preflight import Configured
from streamfl.contract.role import Record
from streamfl.dp_frank_wolfe.config import PARTY, SERVER, DPFrankWolfeSettings
from streamfl.identity.signed_records import signatures
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker

PARTIES = ("party-0", "party-1")
MEMBERS = {**dict.fromkeys(PARTIES, PARTY), SERVER_MEMBER: SERVER}


class Federation:
    """Two parties and a server, and the rows of one window."""

    def __init__(self, folder: Path, keys: bool = True) -> None:
        self.keys = Keys(folder, "f")
        for member, kind in MEMBERS.items():
            self.keys.add(member, kind, speaks_for=() if kind == SERVER else (member,))
        self.now = 1_700_000_000.0
        self.bus = MemoryBus(clock=lambda: self.now)
        self.dead_letters: dict[str, str] = {}
        self.workers = {name: self._start(name, keys) for name in MEMBERS}
        random = np.random.default_rng(5)
        for row in range(ROWS):
            key, inputs = b"p%02d" % row, random.uniform(-1, 1, (len(PARTIES), COLUMNS)).tolist()
            for party, own in zip(PARTIES, inputs, strict=True):
                value = json.dumps({f"x{number}": one for number, one in enumerate(own)}).encode()
                self.bus.write([Outgoing(f"{party}-samples", key, value, 0)])
            self.bus.write([Outgoing("labels", key, json.dumps({"y": inputs[0][1]}).encode(), 0)])

    def _start(self, member: str, keys: bool) -> Worker:
        content = settings_of(member).model_dump(exclude_unset=True)
        for name, section in (self.keys.sections(member) if keys else {}).items():
            content[name] = {**content.get(name, {}), **section}
        settings = DPFrankWolfeSettings.model_validate({**content, "bus": {"commit_interval_ms": 0}})
        self.dead_letters[member] = settings.dead_letters
        specs = find_kind(settings.role.kind).topics(settings)
        known = self.bus.describe([spec.name for spec in specs])
        self.bus.create(
            [type(spec)(spec.name, 1, spec.compacted) for spec in specs if spec.name not in known]
        )
        return build_worker(settings, self.bus, lambda: self.now, lambda: self.now, lambda seconds: None)

    def settle(self, *without: str, rounds: int = 60) -> None:
        for _ in range(rounds):
            self.now += 0.25
            for name, worker in self.workers.items():
                if name not in without:
                    worker.step(0.0)

    def said(self, topic: str) -> list[Record]:
        return list(self.bus.read(f"f.{topic}"))

    def refused(self, member: str) -> Counter[str]:
        return Counter(
            dict(letter.headers)["error"].decode() for letter in self.bus.read(self.dead_letters[member])
        )

    def model(self) -> dict[bytes | None, bytes | None]:
        found = {record.key: record.value for record in self.said("model")}
        assert len(found) == len(PARTIES)
        return found


@pytest.fixture(name="usual", scope="module")
def _usual(tmp_path_factory: pytest.TempPathFactory) -> dict[bytes | None, bytes | None]:
    """What is learnt without keys and without strangers."""
    federation = Federation(tmp_path_factory.mktemp("usual"), keys=False)
    federation.settle()
    return federation.model()


def test_keys_change_nothing_of_what_is_learnt(
    tmp_path: Path, usual: dict[bytes | None, bytes | None]
) -> None:
    """Protects a federation that gives its members keys: party and server sign what they say, and hear each
    other."""
    federation = Federation(tmp_path)
    federation.settle()
    assert federation.model() == usual
    for topic in [f"{party}.{which}" for party in PARTIES for which in ("asks", "releases")]:
        found = federation.said(topic)
        assert found
        assert all("seal" in dict(record.headers) for record in found), topic
    assert [federation.refused(name) for name in MEMBERS] == [Counter()] * 3


@pytest.mark.parametrize(
    ("topic", "hears", "kind"),
    [
        ("party-0.asks", "party-0", "manifest"),
        ("party-1.asks", "party-1", "ask"),
        ("party-0.releases", SERVER_MEMBER, "entities"),
        ("party-1.releases", SERVER_MEMBER, "answers"),
    ],
)
def test_what_somebody_else_wrote_is_refused_and_the_fit_goes_on(
    tmp_path: Path, usual: dict[bytes | None, bytes | None], topic: str, hears: str, kind: str
) -> None:
    """Protects budgets and the model: who may write to the broker begins no fit, asks nothing and answers
    nothing in another's name.
    """
    federation = Federation(tmp_path)
    for _ in range(200):
        federation.settle(hears, rounds=1)
        if any(kind_of(record) == kind for record in federation.said(topic)):
            break
        federation.workers[hears].step(0.0)
    genuine = next(record for record in reversed(federation.said(topic)) if kind_of(record) == kind)
    value = genuine.value or b""
    changed = value[:-1] + bytes([value[-1] ^ 1])
    elsewhere = {"party-0.asks": "party-1.asks", "party-1.asks": "party-0.asks"}.get(topic, "party-0.asks")
    federation.settle(hears, rounds=1)
    federation.bus.write(
        [
            again(msgspec.structs.replace(genuine, value=changed)),
            Outgoing(genuine.topic, None, changed, genuine.partition),
            # Signed by a member, for another place.
            again(
                (federation.said(elsewhere) or federation.said("party-1.releases"))[0], topic=genuine.topic
            ),
        ]
    )
    federation.settle()
    refused = federation.refused(hears)
    assert refused["unsigned"] == 1
    assert sum(refused.values()) == 3
    assert set(refused) <= {"unsigned", "forged", "not_a_member", "not_its_client"}
    assert federation.model() == usual


def test_the_model_is_signed_for_everybody_and_what_a_stranger_writes_there_is_refused(
    tmp_path: Path,
) -> None:
    """Protects who applies the model: with keys it is the server's, unchanged, or shown as refused without
    its weights."""
    federation = Federation(tmp_path)
    federation.settle()
    own = settings_of("party-0").model_dump(exclude_unset=True)
    for name, section in federation.keys.sections("party-0").items():
        own[name] = {**own.get(name, {}), **section}
    reader = Configured(Path("party.toml"), find_kind(PARTY), DPFrankWolfeSettings.model_validate(own))
    says = find_topic(reader, federation.bus, "model").says
    genuine = federation.said("model")[0]
    assert says(genuine) == json.loads(genuine.value or b"")
    assert says(msgspec.structs.replace(genuine, partition=3, offset=77)) == says(genuine), (
        "the bus chose its partition"
    )

    heavier = (genuine.value or b"").replace(b'"weights":[', b'"weights":[9.0,')
    party = federation.keys.identity("party-1", PARTY)
    strangers = {
        "unsigned": msgspec.structs.replace(genuine, headers=()),
        "forged": msgspec.structs.replace(genuine, value=heavier),
        "not_a_member": msgspec.structs.replace(
            genuine, value=heavier, headers=signatures(party, "f.model")(genuine.key, heavier, None)
        ),
    }
    assert {reason: says(record)["refused"] for reason, record in strangers.items()} == {
        reason: reason for reason in strangers
    }
    elsewhere = [{"key": b"party-1"}, {"key": None}, {"topic": "g.model"}, {"headers": genuine.headers * 2}]
    assert {says(msgspec.structs.replace(genuine, **place))["refused"] for place in elsewhere} == {"forged"}
    assert all("weights" not in says(record) for record in strangers.values())


def kind_of(record: Record) -> str:
    return str(msgspec.msgpack.decode(record.value or b"")[5])
