"""What keeps a vertical party's promises: its ledger, its secret, where an entity lies, and how often it
answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from vafl.makers import Steps, make_party

from streamfl.configuration.secrets import read_secret
from streamfl.configuration.settings import load_settings
from streamfl.contract.role import (
    BadRecord,
    ConfigurationError,
    Received,
    Record,
    Rejection,
    Send,
    StateChange,
)
from streamfl.encoding.wire import VERSION
from streamfl.records.samples import Sample
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.functions.networks import DenseNetwork
from streamfl.vafl.messages import EMBEDDING, Reply
from streamfl.vafl.party.role import VaflParty
from streamfl.vafl.privacy import BoundedOutput, Mechanism

MECHANISM = Mechanism(
    embedding_norm=1.0,
    embedding_noise=4.0,
    gradient_norm=1.0,
    gradient_noise=4.0,
    budget=9.0,
    secret="0" * 64,
)


def party(mechanism: Mechanism | None = None, **settings: Any) -> VaflParty:
    network: Any = DenseNetwork([1, 1], bias=False, dtype=np.float64)
    role = make_party(
        name="bank",
        function=network
        if mechanism is None
        else BoundedOutput(network, mechanism.embedding_norm, normalise=False),
        inputs=1,
        embedding_size=1,
        steps=Steps("sgd", 1.0, 1),
        seed=0,
        mechanism=mechanism,
        **settings,
    )
    role.open(0)
    return role


def fed(role: VaflParty, channel: str, message: Any, key: str) -> list[int]:
    """The sequence numbers of what the party shows."""
    replies = role.receive([Received(channel, message, Record(channel, 0, 0, key.encode(), b""))], 0.0)
    assert not [reply for reply in replies if isinstance(reply, Rejection)]
    return [EMBEDDING.decode(reply.value).sequence for reply in replies if isinstance(reply, Send)]


def sees(role: VaflParty, entity: str) -> list[int]:
    return fed(role, "samples", Sample(entity, "s", (1.0,), None), entity)


def is_asked(role: VaflParty, entity: str, sequence: int) -> list[int]:
    return fed(role, "gradients", Reply(VERSION, 0, entity, 0, sequence, b""), entity)


def withheld(role: VaflParty, reason: str) -> float:
    (found,) = [
        one.value
        for one in role.measure()
        if one.name == "withheld_embeddings" and one.labels == (("reason", reason),)
    ]
    return found


def restored(role: VaflParty, state: Sequence[StateChange]) -> VaflParty:
    for change in state:
        role.restore(change)
    return role


def test_a_party_with_a_ledger_does_not_go_on_without_noise() -> None:
    """Protects people whose budget is spent: a section that is removed by mistake would show them without any
    noise."""
    before = party(MECHANISM)
    assert sees(before, "ann") == [1]
    state = list(before.changed_state())
    with pytest.raises(BadRecord, match=r"\[privacy\] is missing.*privacy\.without_noise = true"):
        restored(party(), state)
    restored(party(MECHANISM), state)


def test_an_operator_may_end_the_promise_and_the_log_says_so() -> None:
    """Protects whoever reads the log later: from when on the mu of before says nothing."""
    before = party(MECHANISM)
    sees(before, "ann")
    after = restored(party(without_noise=True), list(before.changed_state()))
    (notice,) = after.notices()
    assert notice.reason == "without_noise"
    assert list(after.notices()) == []
    assert sees(after, "ann") == [2]
    with pytest.raises(BadRecord, match="without noise before"):
        restored(party(MECHANISM), list(after.changed_state()))


@pytest.mark.parametrize("mechanism", [None, MECHANISM])
def test_a_coordinator_cannot_ask_for_ever(mechanism: Mechanism | None) -> None:
    """Protects an entity's features from being asked out of the party, a noisy copy at a time, and the party
    from endless work."""
    role = party(mechanism, requests=3)
    log: dict[bytes, StateChange] = {}
    (sequence,) = sees(role, "ann")
    shown = 0
    while answer := is_asked(role, "ann", sequence):
        sequence, shown = answer[0], shown + 1
        assert shown <= 3
        # What it was asked before a restart counts too.
        role = restored(party(mechanism, requests=3), compacted(log, role))
    assert shown == 3
    assert withheld(role, "requests") == 1
    # Seen again by the party itself it begins anew.
    (sequence,) = sees(role, "ann")
    assert len(is_asked(role, "ann", sequence)) == 1


def compacted(log: dict[bytes, StateChange], role: VaflParty) -> list[StateChange]:
    """The changelog after what the role has changed since."""
    for change in role.changed_state():
        log.pop(change.key, None)
        if change.value is not None:
            log[change.key] = change
    return list(log.values())


def test_entities_shown_before_requests_were_counted_are_restored() -> None:
    """Protects an upgrade: state of the release before has no number of requests."""
    before = party()
    sees(before, "ann")
    old = [
        StateChange(
            one.channel, one.partition, one.key, msgspec.msgpack.encode(msgspec.msgpack.decode(one.value)[:3])
        )
        if one.key.startswith(b"entity/") and one.value is not None
        else one
        for one in before.changed_state()
    ]
    assert is_asked(restored(party(), old), "ann", 1) == [2]


# ---- the secret


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """Protects everything that noise hides: whoever reads the secret takes the noise off."""
    path = tmp_path / "secret"
    path.write_bytes(bytes(range(32)))
    for mode in (0o644, 0o640, 0o604, 0o660, 0o602):
        path.chmod(mode)
        with pytest.raises(ConfigurationError, match=r"other users may read or write it.*chmod 600"):
            read_secret(str(path), "privacy.secret_file")
    path.chmod(0o400)
    assert read_secret(str(path), "privacy.secret_file") == bytes(range(32))


@pytest.mark.parametrize(
    "content", [bytes(32), b"a" * 64, b"ab" * 40, bytes(31), b"", b"0123456" * 10, b"abcdefgh" * 4 + b"\n"]
)
def test_what_is_no_secret_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    """Protects everything that noise hides from a file that anybody can guess, such as 32 zero bytes."""
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="head -c 32 /dev/urandom") as caught:
        read_secret(str(path), "privacy.secret_file")
    assert content[:8] == b"" or repr(content[:8])[2:-1] not in str(caught.value)


def test_a_secret_as_digits_will_do(tmp_path: Path) -> None:
    """Protects operators whose secret store holds text: 64 hexadecimal digits are 32 bytes."""
    path = tmp_path / "secret"
    path.write_text("".join(f"{(37 * number) % 256:02x}" for number in range(32)))
    path.chmod(0o600)
    read_secret(str(path), "privacy.secret_file")


# ---- where an entity lies

CONFIG = """
[federation]
name = "clinic"
parties = ["bank", "shop"]
embedding_size = 1
[role]
kind = "vafl-party"
[party]
name = "bank"
[samples]
topic = "accounts"
entity = "customer"
features = ["x"]
{keyed}
[privacy]
embedding_norm = 1.0
embedding_noise = 4.0
gradient_norm = 1.0
gradient_noise = 4.0
secret_file = "{secret}"
"""


def shown_by_a_worker(tmp_path: Path, keyed: str) -> tuple[list[str], dict[str, bytes]]:
    """What a party shows of one customer whose records lie in both partitions, and the headers of the dead
    letter, if any."""
    (tmp_path / "secret").write_bytes(bytes(range(32)))
    (tmp_path / "secret").chmod(0o600)
    path = tmp_path / "bank.toml"
    path.write_text(CONFIG.format(keyed=keyed, secret=tmp_path / "secret"))
    settings = load_settings(path, VaflSettings)
    bus = MemoryBus()
    kind = find_kind("vafl-party")
    bus.create([replace(spec, partitions=2) for spec in kind.topics(settings)])
    bus.write(
        [Outgoing("accounts", None, b'{"customer": "ann", "x": 0.5}', partition) for partition in (0, 1)]
    )
    worker = build_worker(settings, bus, clock=lambda: 100.0)
    while worker.step(0):
        pass
    worker.close()
    shown = [EMBEDDING.decode(record.value).entity for record in bus.read("clinic.bank.embeddings")]
    letters = [dict(record.headers) for record in bus.read("clinic.bank.dead-letters")]
    return shown, letters[0] if letters else {}


def test_an_entity_in_another_partition_is_a_dead_letter(tmp_path: Path) -> None:
    """Protects the budget: each partition has a ledger of its own, so an entity in two of them would be shown
    twice as often."""
    shown, letter = shown_by_a_worker(tmp_path, "")
    assert shown == ["ann"]
    assert letter["error"] == b"partition"
    assert b"murmur2" in letter["text"]


def test_who_partitions_otherwise_says_so(tmp_path: Path) -> None:
    """Protects users whose producers choose partitions in another way that is the same for an entity
    always."""
    shown, letter = shown_by_a_worker(tmp_path, "keyed_by_entity = false")
    assert shown == ["ann", "ann"]
    assert letter == {}
