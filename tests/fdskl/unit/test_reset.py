"""``streamfl reset`` of the party that alone knows the model."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from command_line import run_command

from streamfl.cli.preflight import read_configuration
from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker

MEMBER = """
[federation]
name = "credit"
parties = ["bank", "shop"]
[bus]
url = "memory://{bus}"
commit_interval_ms = 0
[role]
kind = "fdskl-worker"
[party]
name = "{party}"
[samples]
topic = "{party}-rows"
features = ["x"]
[learning]
loss = "{loss}"
bandwidth = 1.0
block_instances = 8
block_features = 8
features_limit = 32
[alignment]
linger_ms = 0
[standardisation]
first_entities = 2
{labels}
"""
LABELS = '[labels]\ntopic = "outcomes"\nlabel = "y"\n'
COUNT = 24


class Pair:
    """A bank that predicts and a shop, on a memory bus, and the command line beside them."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self.run = lambda *arguments: run_command(monkeypatch, capture, *arguments)
        self.folder = folder
        self.bus = MemoryBus.at(f"memory://{folder.name}")
        for party in ("bank", "shop"):
            assert self.run("topics", self.config(party), "--create-inputs", "--partitions", 1)[0] == 0

    def config(self, party: str, loss: str = "square") -> Path:
        path = self.folder / f"{party}.toml"
        labels = LABELS if party == "bank" else ""
        path.write_text(MEMBER.format(bus=self.folder.name, party=party, loss=loss, labels=labels))
        return path

    def worker(self, path: Path) -> Worker:
        return build_worker(read_configuration(path).settings, self.bus)

    def work(self, path: Path, shop: Worker) -> list[dict[str, Any]]:
        """Let both work off what is there; the bank's predictions that come of it."""
        before = sum(1 for _ in self.bus.read("credit.predictions"))
        with closing(self.worker(path)) as bank:
            idle = 0
            while idle < 20:
                idle = 0 if bank.step(0.005) | shop.step(0.005) else idle + 1
        return [json.loads(record.value or b"") for record in self.bus.read("credit.predictions")][before:]


@pytest.fixture(name="pair")
def _pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pair:
    return Pair(tmp_path, monkeypatch, capsys)


def test_the_active_party_begins_anew_while_the_other_runs_on(pair: Pair) -> None:
    """Protects a change of what the active party alone decides: it is reset, everybody is predicted again and
    learnt from anew.

    The other party is neither stopped nor asked. What it remembers is what the new model is made of.
    """
    bank, shop = pair.config("bank"), pair.config("shop")
    for number in range(COUNT):
        for party in ("bank", "shop"):
            pair.bus.write(
                [Outgoing(f"{party}-rows", b"%d" % number, json.dumps({"x": number % 5 - 2.0}).encode())]
            )
    with closing(pair.worker(shop)) as other:
        first = pair.work(bank, other)
        pair.bus.write(
            [
                Outgoing("outcomes", b"%d" % number, json.dumps({"y": number % 2}).encode())
                for number in range(COUNT)
            ]
        )
        assert pair.work(bank, other) == []
        pair.bus.write([Outgoing(f"{party}-rows", b"late", b'{"x": 1.0}') for party in ("bank", "shop")])
        [learnt] = pair.work(bank, other)
        assert learnt["model"] > 0
        bank = pair.config("bank", "logistic")
        code, out, _ = pair.run("check", bank)
        assert (code, "learning.loss" in out) == (4, True)
        assert pair.run("reset", bank, "--all")[0] == 0
        again = pair.work(bank, other)
        known = {one["entity"] for one in again}
        assert len(again) >= COUNT + 1
        assert known == {one["entity"] for one in first} | {"late"}
        assert (again[0]["model"], again[0]["prediction"]) == (0, 0.5)
        pair.bus.write([Outgoing(f"{party}-rows", b"later", b'{"x": 1.0}') for party in ("bank", "shop")])
        [last] = pair.work(bank, other)
        assert last["model"] > 0
        assert last["parties"] == 2
    for party in ("bank", "shop"):
        assert list(pair.bus.read(f"credit.{party}.dead-letters")) == []


def test_whose_secret_others_features_are_of_is_not_reset(pair: Pair) -> None:
    """Protects the active party's model: its features mean nothing more once another party has forgotten its
    secret."""
    code, _, error = pair.run("reset", pair.config("shop"), "--all")
    assert (code, "cannot be reset" in error) == (2, True)


def test_a_key_that_no_party_has_is_found_before_the_start(pair: Pair) -> None:
    """Protects the operator from a changelog of another role: `streamfl check` says what the worker would
    refuse."""
    config = pair.config("shop")
    with closing(pair.worker(config)) as shop:
        pair.bus.write([Outgoing("shop-rows", b"a", b'{"x": 1.0}')])
        while shop.step(0.005):
            pass
    assert pair.run("check", config)[0] == 0
    pair.bus.write(
        [Outgoing("credit.shop.state", key, b"\x90") for key in (b"entity/a", b"client/a", b"descent")]
    )
    code, out, _ = pair.run("check", config)
    assert (
        code,
        "2 keys that a fdskl-worker does not know, such as b'client/a'" in " ".join(out.split()),
    ) == (4, True)
    pair.bus.write(
        [Outgoing("credit.shop.state", key, None) for key in (b"entity/a", b"client/a", b"descent")]
    )
    assert pair.run("check", config)[0] == 0


@pytest.mark.parametrize(
    ("party", "told"),
    [("bank", "streamfl reset CONFIG --all"), ("shop", "another federation.name at every member")],
)
def test_nobody_is_told_to_delete_what_a_model_rests_on(pair: Pair, party: str, told: str) -> None:
    """Protects the active party's model: the other's state has the secret that its features come from. With
    another secret the model would go on, and mean something else."""
    paths = {name: pair.config(name) for name in ("bank", "shop")}
    for name in paths:
        pair.bus.write([Outgoing(f"{name}-rows", b"one", b'{"x": 1.0}')])
    with closing(pair.worker(paths["shop"])) as other:
        pair.work(paths["bank"], other)
    del pair.bus._topics[f"{party}-rows"]
    pair.bus.create([TopicSpec(f"{party}-rows", 1, compacted=False)])
    with closing(pair.worker(paths[party])) as worker, pytest.raises(ConfigurationError) as refused:
        worker.step(0.005)
    assert "was deleted and created again" in str(refused.value)
    assert told in str(refused.value)
    assert ("delete the topics" in str(refused.value)) == (party == "bank")
