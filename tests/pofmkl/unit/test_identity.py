"""Clients and a server with keys, on the memory bus: what strangers write is refused and counted, and
learning goes on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from identities import Keys, again, figure
from msgspec.structs import replace
from scraped import scraped

from streamfl.contract.role import BadRecord, Record
from streamfl.encoding.wire import VERSION, encode_array, record_size
from streamfl.identity import Identity, Member, Members, PrivateKey, add_key
from streamfl.pofmkl.client.model import ModelTable
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.messages import (
    KERNEL_PARAMETERS,
    MARKER_KEY,
    SHARD_VERSION,
    SIGNED_KEY,
    SIGNED_VERSION,
    UPDATE,
    KernelParameters,
    ShardVersion,
    SignedVersion,
    decode_model,
    kernel_key,
)
from streamfl.pofmkl.server.role import PofmklServer
from streamfl.pofmkl.signed_model import ModelSigning, SignedShard, empty_row
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.dealing import PARTITIONS_HEADER
from streamfl.runtime.identity_watch import IdentityWatch
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker
from streamfl.state.state_settings import LAYOUT_HEADER, RELEASE_HEADER, STATE_SETTINGS_HEADER

CLIENTS = ("press-1", "press-2", "mill-1")
ROW = 2 * 4


class Plant:
    """A POF-MKL federation: a server, site a with the presses, site b with the mill, each with a key."""

    def __init__(
        self,
        folder: Path,
        signed: bool = True,
        staleness: str = "async",
        shards: int = 1,
        name: str = "plant",
    ) -> None:
        self.keys = Keys(folder, name)
        self.keys.add("server", "pofmkl-server")
        self.keys.add("a", "pofmkl-client", speaks_for=("press-*",))
        self.keys.add("b", "pofmkl-client", speaks_for=("mill-1",))
        self.now = 1_700_000_000.0
        self.bus = MemoryBus(clock=lambda: self.now)
        self.signed, self.staleness, self.shards, self.name = signed, staleness, shards, name
        self.made = 0
        self._made: dict[str, Worker] = {}
        for member in ("server", "a", "b"):
            self.start(member)

    def settings(self, member: str) -> PofmklSettings:
        kind = "pofmkl-server" if member == "server" else "pofmkl-client"
        sections = self.keys.sections(member) if self.signed else {"federation": {}}
        content: dict[str, Any] = {
            **sections,
            "federation": {
                "name": self.name,
                "clients": len(CLIENTS),
                "shards": self.shards,
                "features": ["x"],
                **sections["federation"],
            },
            "role": {"kind": kind},
            "bus": {"commit_interval_ms": 0, "group": f"{self.name}.{member}"},
            "learning": {
                "preset": "paper",
                "staleness": self.staleness,
                "features_per_kernel": 4,
                "learning_rate": 0.2,
            },
            "kernels": {"bandwidths": [0.5, 1.0]},
        }
        if kind == "pofmkl-client":
            content["samples"] = {
                "topic": f"readings-{member}",
                "client": "c",
                "features": ["x"],
                "label": "y",
            }
        return PofmklSettings(**content)

    def start(self, member: str) -> Worker:
        """A worker of this member, in the place of the one that it had."""
        if member in self._made:
            self._made[member].close()
        settings = self.settings(member)
        specs = find_kind(settings.role.kind).topics(settings)
        known = self.bus.describe([spec.name for spec in specs])
        self.bus.create([with_partitions(spec) for spec in specs if spec.name not in known])
        worker = self._made[member] = build_worker(
            settings, self.bus, lambda: self.now, lambda: self.now, lambda seconds: None
        )
        return worker

    def __getitem__(self, member: str) -> Worker:
        return self._made[member]

    def sample(self, *clients: str) -> None:
        """A labelled sample of each client."""
        for client in clients:
            self.made += 1
            content = {"c": client, "x": self.made % 7 / 7, "y": self.made % 7 / 14}
            topic = "readings-b" if client.startswith("mill") else "readings-a"
            self.bus.write([Outgoing(topic, client.encode(), json.dumps(content).encode(), 0)])

    def settle(self) -> None:
        for _ in range(50):
            self.now += 0.5
            if not sum(worker.step(0.0) for worker in self._made.values()):
                self.now += 2.0
                if not sum(worker.step(0.0) for worker in self._made.values()):
                    return

    def learn(self, rounds: int = 3) -> None:
        for _ in range(rounds):
            self.sample(*CLIENTS)
            self.settle()

    @property
    def server(self) -> PofmklServer:
        role = self["server"].role
        assert isinstance(role, PofmklServer)
        return role

    def applied(self) -> int:
        return int(figure(self["server"], "updates_applied"))

    def records(self, topic: str) -> list[Record]:
        return list(self.bus.read(f"{self.name}.{topic}"))

    def refused(self) -> Counter[str]:
        return Counter(dict(letter.headers)["error"].decode() for letter in self.records("dead-letters"))

    def parameters(self, member: str) -> np.ndarray:
        return self[member].role.model.parameters.copy()  # type: ignore[attr-defined]


def with_partitions(spec: Any) -> Any:
    """The topic with one partition where any number will do."""
    return spec if spec.partitions else type(spec)(spec.name, 1, spec.compacted)


@pytest.mark.parametrize("staleness", ["async", "lockstep"])
def test_members_learn_as_they_would_without_keys(tmp_path: Path, staleness: str) -> None:
    """Protects the mathematics: keys change who is heard, and nothing of what is learnt from whom."""
    for folder in ("with", "without"):
        (tmp_path / folder).mkdir()
    signed = Plant(tmp_path / "with", staleness=staleness)
    plain = Plant(tmp_path / "without", signed=False, staleness=staleness)
    for plant in (signed, plain):
        plant.learn(5)
        assert plant.applied() == 15
        assert not plant.refused()
    assert np.abs(plain.parameters("a")).max() > 0
    np.testing.assert_array_equal(signed.parameters("a"), plain.parameters("a"))
    # Without keys there is nothing of them in what is written.
    headers = {
        name
        for topic in ("updates", "model")
        for record in plain.records(topic)
        for name, _ in record.headers
    }
    assert headers <= {"crc", STATE_SETTINGS_HEADER, LAYOUT_HEADER, RELEASE_HEADER, PARTITIONS_HEADER}
    assert MARKER_KEY in {record.key for record in plain.records("model")}
    assert SIGNED_KEY not in {record.key for record in plain.records("model")}


def test_updates_of_strangers_are_refused_to_the_last(tmp_path: Path) -> None:
    """Protects every client's name: unsigned, forged, moved and revoked updates, and those of a site for
    another's client."""
    plant = Plant(tmp_path, shards=2)
    plant.learn()
    before, learnt = plant.applied(), plant.parameters("a")
    honest = plant.records("updates")
    mill = next(record for record in honest if record.key == b"mill-1")
    high = UPDATE.decode(mill.value)
    high = replace(high, epoch=2**52, sequence=2**52, kernels=(), steps=b"")
    press = next(record for record in honest if record.key == b"press-1")
    stranger = PrivateKey.generate()
    plant.keys.change(Member("revoked", ("pofmkl-client",), (stranger.public.text,), ("*",), revoked=True))
    plant.start("server")
    attacks: list[Outgoing] = [
        Outgoing("plant.updates", b"mill-1", UPDATE.encode(high), 0),
        again(replace(mill, value=UPDATE.encode(high))),
        again(mill, partition=1 - mill.partition),
        again(replace(press, key=b"mill-1")),
        # Site a, whose seal is good, in the name of site b's client.
        sealed_by(plant, "a", b"mill-1", replace(high, epoch=2**40)),
        sealed_as(plant, stranger, b"mill-1", high),
    ]
    plant.bus.write(attacks)
    plant.settle()
    assert plant.refused() == Counter(unsigned=1, forged=3, not_its_client=1, revoked=1)
    assert scraped(plant["server"].metrics.render().decode(), "dead_letters_total", reason="forged") == 3
    assert figure(plant["server"], "updates_applied") == 0
    np.testing.assert_array_equal(plant.parameters("a"), learnt)
    plant.learn()
    assert plant.applied() == before
    assert not np.array_equal(plant.parameters("a"), learnt)
    assert sum(plant.refused().values()) == len(attacks)


def test_a_site_does_not_take_samples_of_others(tmp_path: Path) -> None:
    """Protects a site that forgot to have a client added: it is told where the samples are, not only where
    the updates go."""
    plant = Plant(tmp_path)
    content = {"c": "saw", "x": 0.5, "y": 0.5}
    plant.bus.write([Outgoing("readings-a", b"saw", json.dumps(content).encode(), 0)])
    plant.learn(1)
    (letter,) = plant.records("dead-letters")
    assert (letter.key, dict(letter.headers)["error"], dict(letter.headers)["topic"]) == (
        b"saw",
        b"not_its_client",
        b"readings-a",
    )
    assert len(plant.records("predictions")) == plant.applied() == len(CLIENTS)


def sealed_by(plant: Plant, member: str, key: bytes, update: Any) -> Outgoing:
    """An update that a member's own worker could have sent."""
    value = UPDATE.encode(update)
    seal = plant.keys.identity(member, "pofmkl-client").seal("plant.updates", "pofmkl-server")
    return Outgoing("plant.updates", key, value, 0, seal(key, value, 0))


def sealed_as(plant: Plant, key: PrivateKey, name: bytes, update: Any) -> Outgoing:
    """What the owner of this key would send if it were not revoked."""
    member = replace(plant.keys.member("revoked"), revoked=False)
    value = UPDATE.encode(update)
    seal = Identity((key,), plant.keys.members.replaced(member), "pofmkl-client").seal(
        "plant.updates", "pofmkl-server"
    )
    return Outgoing("plant.updates", name, value, 0, seal(name, value, 0))


# ---- the model


def model_attacks(plant: Plant) -> dict[str, list[Outgoing]]:
    """What somebody with WRITE on the model's topic could send."""
    records = plant.records("model")
    version = next(record for record in reversed(records) if record.key == SIGNED_KEY)
    content = SIGNED_VERSION.decode(version.value)
    far = replace(content.marker, model_version=10**6, updates=10**6)
    wrong = KERNEL_PARAMETERS.encode(
        KernelParameters(VERSION, 0, encode_array(np.full(ROW, 1e17, np.float32)))
    )
    marker = SHARD_VERSION.encode(far)
    return {
        "unsigned version": [Outgoing("plant.model", MARKER_KEY, marker, 0)],
        "unsigned kernels and version": [
            Outgoing("plant.model", kernel_key(0), wrong, 0),
            Outgoing("plant.model", MARKER_KEY, marker, 0),
        ],
        "forged version": [
            Outgoing("plant.model", SIGNED_KEY, SIGNED_VERSION.encode(replace(content, marker=far)), 0)
        ],
        "kernels under a true version": [Outgoing("plant.model", kernel_key(0), wrong, 0), again(version)],
        "largest numbers": [
            Outgoing(
                "plant.model",
                SIGNED_KEY,
                SIGNED_VERSION.encode(
                    replace(
                        content,
                        marker=ShardVersion(VERSION, far.fingerprint, 1, 0, 2**63, 2**63),
                        digests=b"",
                    )
                ),
                0,
            )
        ],
    }


@pytest.mark.parametrize(
    "attack", ["unsigned version", "unsigned kernels and version", "forged version", "largest numbers"]
)
def test_a_version_that_the_server_did_not_sign_is_not_taken(tmp_path: Path, attack: str) -> None:
    """Protects every client's predictions: it goes on with what it has, counts, turns red, and green
    again."""
    plant = Plant(tmp_path)
    plant.learn()
    versions, parameters = plant["a"].role.model.versions, plant.parameters("a")  # type: ignore[attr-defined]
    plant.bus.write(model_attacks(plant)[attack])
    plant.settle()
    assert plant["a"].role.model.versions == versions  # type: ignore[attr-defined]
    np.testing.assert_array_equal(plant.parameters("a"), parameters)
    # What is no version at all is refused before anybody looks at it.
    assert (
        "the published model cannot be used" in (plant["a"].role.trouble or "") or attack == "largest numbers"
    )
    assert scraped(plant["a"].metrics.render().decode(), "table_rejections_total") > 0
    made = len(plant.records("predictions"))
    plant.learn(1)
    assert len(plant.records("predictions")) == made + len(CLIENTS)
    assert plant["a"].role.trouble is None
    assert plant["a"].role.model.versions > versions  # type: ignore[attr-defined]
    assert not plant.refused()


def test_a_version_is_found_among_what_strangers_write_between_its_records() -> None:
    """Protects the version that is on its way: a stranger's record right after the server's own does not take
    its place."""
    key = PrivateKey(b"v" * 32)
    identity = Identity(
        (key,), Members("plant", (Member("server", ("pofmkl-server",), (key.public.text,)),)), "pofmkl-server"
    )
    signing = ModelSigning(
        "plant", "plant.model", identity.sign, partial(identity.check_signature, "pofmkl-server")
    )
    shard = SignedShard(signing, (0, 1), empty_row(ROW, np.float32))
    table = ModelTable(2, ROW, 1, 1, 0, np.float32, signing)
    honest = np.arange(ROW, dtype=np.float32)
    shard.note(1, encode_array(honest))
    table.apply(KernelParameters(VERSION, 1, encode_array(honest)), 0)
    for number in range(3):
        table.apply(KernelParameters(VERSION, 1, encode_array(np.full(ROW, number, np.float32))), 0)
    record = shard.sign(ShardVersion(VERSION, 0, 1, 0, 1, 1))
    table.apply(SIGNED_VERSION.decode(record), 0)
    assert table.versions == (1,)
    np.testing.assert_array_equal(table.parameters, [np.zeros(ROW), honest])
    assert (table.trouble, table.unsigned) == (None, 3)


def test_a_client_without_keys_takes_no_signed_model(tmp_path: Path) -> None:
    """Protects a site that forgot its keys: what it sends is refused everywhere, so it is told at its first
    start."""
    plant = Plant(tmp_path)
    plant.learn()
    table = ModelTable(2, ROW, 1, 1, 0, np.float32)
    said = [record for record in plant.records("model") if record.key == SIGNED_KEY]
    with pytest.raises(BadRecord, match=r"members have keys.*Set federation\.members") as refused:
        table.apply(decode_model(said[-1].key, said[-1].value), 0)
    assert refused.value.reason == "configuration"


NUMBERS = st.integers(-(2**63), 2**64 - 1)


@given(
    numbers=st.tuples(*[NUMBERS] * 5),
    digests=st.binary(max_size=64),
    signature=st.binary(max_size=80),
    known=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_no_signed_version_of_a_stranger_is_more_than_refused(
    numbers: tuple[int, int, int, int, int], digests: bytes, signature: bytes, known: bool
) -> None:
    """Protects clients from an end by a record of the model: whatever is in it, it is refused, and nothing
    else."""
    server, site = PrivateKey(b"v" * 32), PrivateKey(b"s" * 32)
    own = Member("a", ("pofmkl-client",), (site.public.text,))
    members = Members("plant", (Member("server", ("pofmkl-server",), (server.public.text,)), own))
    identity = Identity((site,), members, "pofmkl-client")
    signing = ModelSigning(
        "plant", "plant.model", identity.sign, partial(identity.check_signature, "pofmkl-server")
    )
    table = ModelTable(2, ROW, 1, 1, 0, np.float32, signing)
    fingerprint, dimension, shard, version, updates = (0, 1, 0, *numbers[3:]) if known else numbers
    marker = ShardVersion(VERSION, fingerprint, dimension, shard, version, updates)
    if known:
        signature = server.public.identifier + signature
    value = SIGNED_VERSION.encode(SignedVersion(VERSION, marker, digests, signature))
    with pytest.raises(BadRecord):
        table.apply(decode_model(SIGNED_KEY, value), 0)
    assert table.versions == (0,)


def test_an_older_version_is_not_taken_again(tmp_path: Path) -> None:
    """Protects the model from going back: an old version with a good signature is refused as a replay."""
    plant = Plant(tmp_path)
    plant.learn(1)
    old = plant.records("model")
    plant.learn(2)
    versions, parameters = plant["a"].role.model.versions, plant.parameters("a")  # type: ignore[attr-defined]
    plant.bus.write([again(record) for record in old])
    plant.settle()
    assert plant["a"].role.model.versions == versions  # type: ignore[attr-defined]
    np.testing.assert_array_equal(plant.parameters("a"), parameters)
    assert scraped(plant["a"].metrics.render().decode(), "table_rejections_total", reason="replayed") > 0


# ---- the server takes its own model back


@pytest.mark.parametrize("shards", [2])
def test_a_server_takes_back_its_own_model_and_no_other(tmp_path: Path, shards: int) -> None:
    """Protects the model over a restart: what strangers wrote into its topic, and what they wrote again of
    it, is passed over."""
    plant = Plant(tmp_path, shards=shards)
    plant.learn(1)
    old = plant.records("model")
    plant.learn()
    versions, parameters = plant["a"].role.model.versions, plant.parameters("a")  # type: ignore[attr-defined]
    attacks = [*model_attacks(plant)["unsigned kernels and version"], *map(again, old)]
    plant.bus.write(attacks)
    plant.start("server")
    plant.settle()
    assert [shard.model_version for shard in plant.server.snapshot().values()] == list(versions)
    taken = np.zeros_like(parameters)
    for number, shard in plant.server.snapshot().items():
        taken[number :: plant.shards] = shard.parameters
    np.testing.assert_array_equal(taken, parameters)
    assert repairs(plant["server"]) > 0
    # What strangers wrote over it is mended: who comes after a compaction finds the model.
    for member in ("b", "a"):
        compacted(plant, "plant.model")
        plant.start(member)
        plant.settle()
        assert plant[member].role.trouble is None
        np.testing.assert_array_equal(plant.parameters(member), parameters)
    plant.learn(1)
    assert plant["a"].role.trouble is None
    assert plant["a"].role.model.versions > versions  # type: ignore[attr-defined]
    np.testing.assert_array_equal(plant.parameters("b"), plant.parameters("a"))


def repairs(worker: Worker) -> float:
    return sum(one.value for one in worker.role.measure() if one.name == "model_repairs")


def rewritten(plant: Plant, topic: str, keep: Any) -> None:
    """The topic as compaction, or somebody who may delete, would leave it."""
    for log in plant.bus._topics[topic].partitions:
        log._records = [record for record in log._records if keep(record)]


def compacted(plant: Plant, topic: str) -> None:
    last = {(record.partition, record.key): record.offset for record in plant.bus.read(topic)}
    rewritten(plant, topic, lambda record: last[record.partition, record.key] == record.offset)


@pytest.mark.parametrize("what", ["kernel", "version", "all"])
def test_a_server_goes_on_from_its_copies_where_its_own_records_are_gone(tmp_path: Path, what: str) -> None:
    """Protects a server from whoever could stop it: what compaction has left of its records, and its copies,
    are a model."""
    plant = Plant(tmp_path)
    plant.learn()
    gone = {"kernel": kernel_key(1), "version": SIGNED_KEY, "all": None}[what]
    records = plant.records("model")
    last = {record.key: record.offset for record in records}
    ever = [{record.value for record in records if record.key == kernel_key(kernel)} for kernel in (0, 1)]
    versions = plant["a"].role.model.versions  # type: ignore[attr-defined]
    plant["server"].close()
    wrong = Outgoing("plant.model", kernel_key(0), b"rubbish", 0)
    rewritten(
        plant,
        "plant.model",
        lambda record: gone is not None and record.key != gone and last[record.key] == record.offset,
    )
    plant.bus.write([wrong])
    plant.start("server")
    plant.settle()
    (shard,) = plant.server.snapshot().values()
    assert (shard.model_version,) == versions
    for kernel in (0, 1):
        row = KernelParameters(VERSION, kernel, encode_array(shard.parameters[kernel]))
        assert KERNEL_PARAMETERS.encode(row) in ever[kernel]
    assert repairs(plant["server"]) == 1
    plant.learn(1)
    assert plant["a"].role.trouble is None
    assert plant["a"].role.model.versions > versions  # type: ignore[attr-defined]


def looked(plant: Plant, member: str) -> None:
    """A worker's watch looks at the member's files, and the worker goes on."""
    worker = plant[member]
    IdentityWatch(plant.settings(member), worker.health).look()
    assert "keys" not in worker.health.reasons


@pytest.mark.parametrize("told", [looked], ids=["going on"])
def test_a_key_can_be_changed_while_the_federation_runs(
    tmp_path: Path, told: Callable[[Plant, str], object]
) -> None:
    """Protects learning while keys change, in the order of the document: nothing is refused and no client
    turns red."""
    plant = Plant(tmp_path)
    plant.learn()
    used = used_keys(plant)
    for name in ("server", "a"):
        new = add_key(plant.keys.key_file(name)).public.text
        others = [one for one in ("server", "a", "b") if one != name]
        for step in ("its own key file", *others, "its own members' file"):
            if step in others:
                member = plant.keys.member(name)
                if new not in member.public_keys:
                    plant.keys.change(replace(member, public_keys=(new, *member.public_keys)))
                told(plant, step)
            else:
                told(plant, name)
            plant.learn(1)
            assert plant["a"].role.trouble is None
            assert plant["b"].role.trouble is None
        member = plant.keys.member(name)
        plant.keys.change(
            replace(member, public_keys=member.public_keys[:1], revoked_keys=member.public_keys[1:])
        )
        versions = plant["a"].role.model.versions  # type: ignore[attr-defined]
        for one in ("b", "server", "a"):
            told(plant, one)
            plant.learn(1)
        assert [shard.model_version for shard in plant.server.snapshot().values()] > list(versions)
    assert not plant.refused()
    assert plant["a"].role.trouble is None
    assert len(used_keys(plant) - used) == 3, (
        "of the server before its change a's new key, and then the server's with a's and b's"
    )


def used_keys(plant: Plant) -> set[bytes]:
    """Of the seals on updates, whose keys made them and for whose."""
    return {dict(record.headers)["seal"][1:17] for record in plant.records("updates")}


def test_a_byte_budget_counts_seals(tmp_path: Path) -> None:
    """Protects the promise of bytes a second: what is counted as sent is what lies in the topic, with its
    seal."""
    plant = Plant(tmp_path)
    plant.learn()
    sent = sum(
        record_size(record) for record in plant.records("updates") if (record.key or b"").startswith(b"press")
    )
    assert figure(plant["a"], "update_bytes") == sent


def test_a_valid_update_again_in_its_place_is_a_duplicate(tmp_path: Path) -> None:
    """Protects the sum from replay: the seal is good where the update was, and the numbers in it say that it
    counted already."""
    plant = Plant(tmp_path)
    plant.learn()
    before, learnt = plant.applied(), plant.parameters("a")
    copies = plant.records("updates")
    plant.bus.write([again(record) for record in copies])
    plant.settle()
    assert plant.applied() == before
    assert figure(plant["server"], "ignored_updates") == len(copies)
    np.testing.assert_array_equal(plant.parameters("a"), learnt)


def test_kernels_of_a_stranger_are_passed_over(tmp_path: Path) -> None:
    """Protects learning under attack: what a stranger writes between its records stops no client from taking
    a version."""
    plant = Plant(tmp_path)
    (tmp_path / "plain").mkdir()
    plain = Plant(tmp_path / "plain", signed=False)
    for _ in range(4):
        plant.bus.write(
            model_attacks(plant)["kernels under a true version"] if plant.records("model") else []
        )
        for one in (plant, plain):
            one.learn(1)
    assert plant["a"].role.trouble is None
    np.testing.assert_array_equal(plant.parameters("a"), plain.parameters("a"))
    assert figure(plant["a"], "unsigned_parameters") == 3
