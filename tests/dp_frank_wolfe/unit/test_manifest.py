"""A window is said by the numbers that each party announced its entities under: names travel once, and both
mean the same ones."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from dp_frank_wolfe.federations import SERVER_MEMBER
from dp_frank_wolfe.hand_made import ROWS, Server, converse, hands, names_of
from dp_frank_wolfe.hand_made import settings_of as server_settings
from dp_frank_wolfe.laws.closed_loop import ClosedLoop, federation
from dp_frank_wolfe.party_driver import NAMES, Driver, reason, settings
from dp_frank_wolfe.party_driver import ROWS as ROWS_OF_PARTY

from streamfl.contract.role import BadRecord
from streamfl.dp_frank_wolfe.messages import Entities, FittedModel, Manifest, content_of, read_content

PARTIES = ("party-0", "party-1")


def digest_of(names: list[str]) -> bytes:
    """Written from docs/messages.md: SHA-256 of a MessagePack array with the array of all names."""
    return hashlib.sha256(msgspec.msgpack.encode([sorted(names)])).digest()


def numbers_in(runs: list[int]) -> list[int]:
    """Written from docs/messages.md: so many numbers are passed over, so many follow."""
    found: list[int] = []
    at = 0
    for place, count in enumerate(runs):
        found += range(at + 1, at + count + 1) if place % 2 else []
        at += count
    return found


@pytest.mark.parametrize("seed", range(4))
def test_whatever_order_parties_announce_in_both_mean_the_same_rows(seed: int) -> None:
    """Protects fits from rows of different people: each party hears its own numbers of the same names, across
    restarts."""
    random = np.random.default_rng(seed)
    server = Server(server_settings())
    given = {party: [] for party in PARTIES}
    orders = {
        party: [*names_of(ROWS), *(f"{party} alone {number}" for number in range(9))] for party in PARTIES
    }
    for order in orders.values():
        random.shuffle(order)
    said: list[tuple[str, Any]] = []
    iterations = dict.fromkeys(PARTIES, 0)
    while any(orders.values()):
        party = PARTIES[int(random.integers(2))]
        count = int(random.integers(1, 8))
        names, orders[party] = [str(name) for name in orders[party][:count]], orders[party][count:]
        if not names:
            continue
        iterations[party] += 1
        given[party] += names
        server.tell(party, "entities", Entities(names), iteration=iterations[party])
        said += server.said
        if random.random() < 0.3:
            server.restart()
    assert [party for party, _ in said] == list(PARTIES)
    for party, message in said:
        told: Manifest = read_content(message.content, Manifest)
        assert [given[party][number - 1] for number in numbers_in(told.runs)] == [
            one for one in given[party] if one in names_of()
        ]
        assert (told.names, told.digest) == ([], digest_of(names_of()))


def waiting(folder: Path) -> Driver:
    """A party that has announced a window's entities and ten more, in three messages."""
    party = Driver(settings(folder))
    for names in (NAMES[10:], [f"zz {number}" for number in range(10)], NAMES[:10]):
        columns = np.full((len(names), 4), 0.25)
        party.feed([party.sample(name, row.tolist()) for name, row in zip(names, columns, strict=True)])
        party.feed([party.label(name, 0.5) for name in names])
        party.tick()
    assert [one.kind for one in party.sent] == ["entities"] * 3
    return party


def test_a_manifest_by_numbers_is_frozen_whatever_ended_before(tmp_path: Path) -> None:
    """Protects numbers from restarts: a party finds the same entities under them, and never gives a number
    twice."""
    party = waiting(tmp_path)
    told = [read_content(one.content, Entities) for one in party.sent]
    assert [(one.first, len(one.names)) for one in told] == [(1, 10), (11, 10), (21, 10)]
    manifest = party.server("manifest", 1, 0, Manifest([], [0, 10, 10, 10], digest_of(NAMES)))
    party = Driver(party.settings, party.state)
    (frozen,) = party.hear(manifest)
    assert msgspec.msgpack.decode(frozen.content)[0] == digest_of(NAMES)
    assert party.task.ledger.spend.times(NAMES[0]) == 1
    # Nobody is left who has a number.
    party.task.table.forget([f"zz {number}" for number in range(10)])
    party.tick()
    again = Driver(party.settings, party.state)
    again.hear(again.sample("anew", [0.1] * 4), again.label("anew", 0.1))
    (message,) = again.tick()
    assert read_content(message.content, Entities) == Entities(["anew"], 31)


WRONG: dict[str, tuple[Any, str]] = {
    "other names than the digest's": (([], [0, 20], digest_of(NAMES)), "another_manifest"),
    "numbers that nothing was announced under": (([], [0, 10, 11, 10], digest_of(NAMES)), "implausible"),
    "numbers beyond all": (([], [2**53, 20], digest_of(NAMES)), "implausible"),
    "too many": (([], [0, 10, 10, 11], digest_of(NAMES)), "malformed"),
    "a run of any number": (([], [0, 2**53], digest_of(NAMES)), "malformed"),
    "a run without a length": (([], [0, 10, 10, 10, 3], digest_of(NAMES)), "malformed"),
    "a run of nothing": (([], [0, 10, 5, 0, 5, 10], digest_of(NAMES)), "malformed"),
    "two runs that are one": (([], [0, 5, 0, 5, 10, 10], digest_of(NAMES)), "malformed"),
    "one entity by name and by number": ((NAMES[:1], [0, 10, 10, 9], digest_of(NAMES)), "malformed"),
    "a number below 0": (([], [-1, 21], digest_of(NAMES)), "malformed"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_manifest_changes_nothing(case: str, tmp_path: Path) -> None:
    """Protects rows and budget: what does not mean rows that this party announced is refused, and the right
    one is taken."""
    party = waiting(tmp_path)
    content, wanted = WRONG[case]
    assert reason(party, party.server("manifest", 1, 0, content)) == wanted
    assert [one.kind for one in party.hear(party.manifest(1))] == ["frozen"]


def reasons(loop: ClosedLoop, kind: str) -> list[str]:
    """Why messages of this kind were refused."""
    found = (one for member in loop.members.values() for one in member.rejections)
    return [one.error.reason for one in found if getattr(one.received.message, "kind", "") == kind]


def test_a_party_that_lost_its_state_is_understood() -> None:
    """Protects whoever began a party anew before its first window: it announces the same entities under other
    numbers, in messages that were heard already. The latest numbers count, across a restart too, and nobody
    is left out.
    """
    loop = federation(2)
    loop.away = [SERVER_MEMBER, PARTIES[1]]
    loop.write_rows([f"person {number:03d}" for number in range(40)])
    member = loop.members["party-0"]
    written = list(member.unread)
    loop.settle()
    member.state = {}
    loop.restart("party-0")
    member.unread.extend(reversed(written))
    loop.settle(7)
    loop.away = [SERVER_MEMBER]
    loop.settle()
    loop.away = []
    while loop.step(SERVER_MEMBER, 1):
        loop.restart(SERVER_MEMBER)
    loop.settle()
    assert loop.rejections() == []
    assert loop.server.model == 1
    assert [len(loop.party(party).ledger.spend) for party in PARTIES] == [30, 30]


def test_numbers_that_are_said_anew_keep_the_order_of_their_writing() -> None:
    """Protects a restart from other windows: which names are drawn first is the same as if the server had
    never stopped."""
    server = Server(server_settings())
    server.announce(names_of(ROWS - 1))
    server.tell("party-0", "entities", Entities(names_of(5), 100), iteration=1)
    assert server.task.announced.completed == ROWS - 1
    for _ in range(2):
        assert list(server.task.announced._complete) == [*names_of(ROWS - 6, 5), *names_of(5)]
        server.restart()


@pytest.mark.parametrize(("numbers", "wanted"), [([40], "another_manifest"), ([900, 901], "implausible")])
def test_a_strangers_announcement_costs_a_window_and_nothing_for_good(
    numbers: list[int], wanted: str
) -> None:
    """Protects a federation without keys: numbers that somebody else gave in a party's name lead to a
    manifest which the party refuses, and it is charged for nobody. The next window is everybody's again.
    """
    loop = federation(2)
    loop.write_rows([f"person {number:03d}" for number in range(20)])
    loop.settle()
    for place, number in enumerate(numbers):
        forged = content_of(Entities([f"person {place:03d}"], number))
        message = [1, loop.public.fingerprint, "party-0", 0, 1, "entities", 0, b"", forged]
        loop.write("f.party-0.releases", None, msgspec.msgpack.encode(message))
    loop.settle()
    for window in (1, 2):
        loop.write_rows([f"window {window} {number:03d}" for number in range(30)], window)
        loop.settle()
        assert reasons(loop, "manifest") == [wanted]
        assert loop.server.model == window
    assert [len(loop.party(party).ledger.spend) for party in PARTIES] == [30, 60]


@pytest.mark.parametrize("fitted", [False, True])
def test_a_strangers_manifest_far_ahead_holds_no_party_for_good(fitted: bool) -> None:
    """Protects a federation without keys: one manifest under a number that the server never comes to charges
    the entities in it once, and the party is in the server's next window all the same.
    """
    loop, ahead = federation(2), 2**53
    names = [f"alone {number:03d}" for number in range(30)]
    for name in names:
        loop.write("party-0-samples", name, msgspec.json.encode({"x0": 0.1, "x1": 0.2, "x2": 0.3}))
        loop.write("labels", name, b'{"y":0.5}')
    loop.settle()
    assert sorted(loop.party("party-0").table.numbered.values()) == names
    told = [("manifest", content_of(Manifest([], [0, 30], digest_of(names))))]
    told += [("model", content_of(FittedModel(b"", b"")))] if fitted else []
    for kind, content in told:
        message = [1, loop.public.fingerprint, "(server)", ahead, 0, kind, 0, b"", content]
        loop.write("f.party-0.asks", None, msgspec.msgpack.encode(message))
    loop.settle()
    assert loop.party("party-0").progress.window == ahead
    for window in (1, 2):
        loop.write_rows([f"window {window} {number:03d}" for number in range(30)], window)
        loop.settle()
        loop.restart("party-0")
        assert [loop.party(party).progress.window for party in PARTIES] == [window] * 2
        assert [loop.party(party).model.version for party in PARTIES] == [window] * 2
        assert loop.server.model == window
    assert [len(loop.party(party).ledger.spend) for party in PARTIES] == [90, 60]
    assert all(loop.party("party-0").ledger.spend.times(name) == 1 for name in names)


@pytest.mark.parametrize(("keys", "said"), [(False, ["frozen"]), (True, [])])
def test_a_manifest_of_earlier_is_a_new_window_only_where_a_stranger_can_write_one(
    keys: bool, said: list[str], tmp_path: Path
) -> None:
    """Protects budgets where members have keys: a stranger's copy of a manifest that the party could not take
    when it came charges nobody and ends no fit."""
    sections = {"federation": {"members": "m"}, "identity": {"key_file": "k"}} if keys else {}
    party = Driver(settings(tmp_path, **sections))
    party.window(200)
    names = [f"zz {number:02}" for number in range(ROWS_OF_PARTY)]
    party.hear(*party.rows(1, names))
    party.tick()
    assert [one.kind for one in party.hear(party.manifest(150, names))] == []
    assert [one.kind for one in party.hear(party.manifest(1, names))] == said
    assert [notice.reason for notice in party.role.notices()] == (["window_ahead"] if said else [])


# ---- what the release before has written


def test_names_of_the_release_before_are_said_by_name() -> None:
    """Protects an upgrade: what waited at the server has no numbers, and is said as it was before, with what
    is new."""
    server = Server(server_settings())
    server.announce(names_of(ROWS - 2))
    server.tell("party-0", "entities", Entities(["z"]), iteration=2)
    # What is remembered of names, as layout 2 has it: a bit for each party.
    for key, value in server.state.items():
        if key.startswith(b"name/"):
            told = [one is not None for one in msgspec.msgpack.decode(value)]
            server.state[key] = msgspec.msgpack.encode(
                sum(1 << place for place, one in enumerate(told) if one)
            )
    server.restart()
    assert server.task.announced.missing == {"party-0": 0, "party-1": 1}
    server.tell("party-1", "entities", Entities(["z", "zz"]), iteration=2)
    server.tell("party-0", "entities", Entities(["zz"]), iteration=3)
    contents = {party: msgspec.msgpack.decode(one.content) for party, one in server.said}
    digest = digest_of([*names_of(ROWS - 2), "z", "zz"])
    assert contents == {
        "party-0": [[*names_of(ROWS - 2), "z"], [39, 1], digest],
        "party-1": [names_of(ROWS - 2), [38, 2], digest],
    }


def test_a_party_of_the_release_before_hears_names_alone() -> None:
    """Protects an upgrade, server first: a party that announces without numbers gets what it can read, and
    there is a model."""
    server = Server(server_settings())
    server.tell("party-0", "entities", Entities(names_of()), iteration=1)
    server.tell("party-1", "entities", msgspec.msgpack.encode([names_of()]), iteration=1)
    contents = {party: msgspec.msgpack.decode(one.content) for party, one in server.said}
    assert contents == {"party-0": [[], [0, ROWS], digest_of(names_of())], "party-1": [names_of()]}
    converse(server, hands(server), restart=True)
    assert server.task.model == 1


def test_a_manifest_of_the_release_before_is_told_again() -> None:
    """Protects a window that was being frozen at an upgrade: the one manifest that was remembered for all is
    said again."""
    server = Server(server_settings())
    server.announce(names_of())
    first = msgspec.msgpack.encode([names_of()])
    server.state[b"manifest/0"] = first
    server.restart()
    server.tick(61.0)
    said = [(party, one.content) for party, one in server.said if one.kind == "manifest"]
    assert said == [(party, first) for party in PARTIES]


def test_damaged_manifests_are_refused() -> None:
    """Protects the server's process: pieces of manifests that do not fit together are no crash."""
    server = Server(server_settings())
    server.announce(names_of())
    for damaged in (
        b"\xc1",
        msgspec.msgpack.encode({"party-0": b""}),
        msgspec.msgpack.encode({"party-1": 7}),
    ):
        server.state[b"manifest/0"] = damaged
        server.restart()
        with pytest.raises(BadRecord, match="no manifests of window 1"):
            server.tick(61.0)


def test_a_party_takes_up_what_the_release_before_announced(tmp_path: Path) -> None:
    """Protects an upgrade: entities that were announced without numbers are frozen by name, and the next ones
    begin at 1."""
    party = waiting(tmp_path)
    for (channel, key), value in list(party.state.items()):
        if key.startswith(b"entity/"):
            party.state[channel, key] = msgspec.msgpack.encode(msgspec.msgpack.decode(value)[:3])
    del party.state["state", b"numbered"]
    again = Driver(party.settings, party.state)
    again.hear(again.sample("anew", [0.1] * 4), again.label("anew", 0.1))
    (message,) = again.tick()
    assert (message.iteration, read_content(message.content, Entities)) == (4, Entities(["anew"], 1))
    names = sorted([*NAMES[1:], "anew"])
    (frozen,) = again.hear(again.server("manifest", 1, 0, Manifest(NAMES[1:], [0, 1], digest_of(names))))
    assert msgspec.msgpack.decode(frozen.content)[0] == digest_of(names)


@pytest.mark.parametrize(
    "value",
    [5, [1], [1, 2, 3], [None, None], [1, -1], 0, {}],
    ids=repr,
)
def test_names_that_nobody_announced_are_refused_in_state(value: Any) -> None:
    """Protects windows from a damaged changelog: numbers that no party can have given are refused as they are
    taken back."""
    server = Server(server_settings())
    server.state[b"name/x"] = msgspec.msgpack.encode(value)
    with pytest.raises((BadRecord, msgspec.ValidationError)):
        server.restart()


def test_two_rows_of_one_number_are_refused_in_state(tmp_path: Path) -> None:
    """Protects rows from a damaged changelog: a number means one entity."""
    party = waiting(tmp_path)
    party.state["state", b"entity/other"] = party.state["state", f"entity/{NAMES[0]}".encode()]
    with pytest.raises(BadRecord, match="a row in state that no record can have led to"):
        Driver(party.settings, party.state)


def test_numbers_that_could_not_be_remembered_are_refused() -> None:
    """Protects the server's state from a lying party: no number is written that would be refused when it is
    read."""
    server = Server(server_settings())
    assert server.hear("party-0", "entities", Entities(["a", "b"], 2**53 - 1), iteration=1) == ["implausible"]
    server.tell("party-0", "entities", Entities(["a", "b"], 2**53 - 2), iteration=1)
    server.restart()
    assert len(server.task.announced._names) == 2
