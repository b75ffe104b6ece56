"""Topics that hold messages of another run of a federation of the same name, or of a stranger."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from dp_frank_wolfe.federations import ROWS, SERVER_MEMBER
from dp_frank_wolfe.laws.closed_loop import ClosedLoop, federation, names_of

from streamfl.dp_frank_wolfe import messages
from streamfl.dp_frank_wolfe.messages import Entities, Frozen, Message, content_of, read_content
from streamfl.dp_frank_wolfe.party import announcing

MORE = ROWS + 7
WINDOWS = 3


def run(loop: ClosedLoop, kind: str, first: int = 0) -> None:
    """Entities come, window by window."""
    for number in range(first, WINDOWS):
        names = [f"{kind} {number} {row:03d}" for row in range(MORE)]
        loop.write_rows(names, number)
        loop.settle()


def history(loop: ClosedLoop, kinds: set[str] | None, ago: float) -> None:
    """Another run's messages between members, or those of some kinds, written so many seconds ago."""
    other = federation(2)
    run(other, "other")
    assert other.server.model == WINDOWS
    loop.now -= ago
    for _, topic, key, value in other.committed:
        is_between = topic.endswith((".asks", ".releases"))
        if is_between and (kinds is None or other.server.codec.decode(value).kind in kinds):
            loop.write(topic, key, value)
    loop.now += ago


def charged(loop: ClosedLoop) -> list[int]:
    """How often each charged entity was charged, at any party."""
    costs = [(loop.party(one).ledger.spend, loop.party(one).ledger.fit_cost) for one in loop.parties]
    names = Counter(name for one in loop.parties for name in frozen_names(loop, one))
    for spend, cost in costs:
        assert spend.largest <= cost * (1 + 1e-9)
    return sorted(set(names.values()))


def frozen_names(loop: ClosedLoop, party: str) -> list[str]:
    return [name for name in loop.rows if loop.party(party).ledger.spend.times(name)]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("kind", ["own", "other"])
@pytest.mark.parametrize(("kinds", "ago"), [(None, 50.0), ({"entities"}, 50.0), ({"entities"}, 0.0)])
def test_another_runs_messages_stop_no_federation(
    kinds: set[str] | None, ago: float, kind: str, restarted: bool
) -> None:
    """Protects a federation over the topics of another one of that name: the server made windows of entities
    that no party had, and took new announcements for repeated ones. All members waited for ever, green. Every
    window is now of the parties' own entities, each charged once; with another run's data too, where the
    parties may freeze its windows."""
    loop = federation(2)
    history(loop, kinds, ago)
    if restarted:
        loop.step(SERVER_MEMBER, 5)
        for name in loop.members:
            loop.restart(name)
    run(loop, kind)
    latest = loop.server.window
    assert loop.server.model == latest >= WINDOWS
    assert {loop.party(one).progress.window for one in loop.parties} == {latest}
    assert all(len(loop.party(one).table) == WINDOWS * (MORE - ROWS) for one in loop.parties)
    assert loop.server.liveness.present == loop.parties
    assert charged(loop) == [2]
    assert [member.role.trouble for member in loop.members.values()] == [None] * 3
    published = Counter(one["version"] for one in loop.published("model"))
    assert len(published) == WINDOWS
    assert set(published.values()) == {2}


def forged(loop: ClosedLoop, kind: str, number: int, content: Any, link: int = 0) -> None:
    """A stranger says it in a party's name, and is heard first."""
    party, window = loop.parties[0], loop.server.window if kind == "frozen" else 0
    fingerprint = loop.public.fingerprint
    message = Message(1, fingerprint, party, window, number, kind, link, b"x" * 32 * bool(link), content)
    loop.write(f"f.{party}.releases", None, msgspec.msgpack.encode(message))
    loop.members[SERVER_MEMBER].unread.rotate(1)


def test_a_forged_number_hides_no_announcement() -> None:
    """Protects entities of a federation without keys: a stranger's announcement under the number that the
    party's next one has, or that leaves no room for others, kept its names out of all windows."""
    loop = federation(2, window={"limit": 2 * ROWS})
    forged(loop, "entities", 1, content_of(Entities([f"nobody {number}" for number in range(2 * ROWS)], 1)))
    loop.write_rows(names_of(), 1)
    loop.settle()
    assert loop.server.model == 1
    assert charged(loop) == [2]
    assert loop.server.announced.missing == {"party-0": 0, "party-1": 0}


def test_a_forged_link_shuts_no_party_out() -> None:
    """Protects a party of a federation without keys: after a release under a huge number of its ledger, which
    a stranger had written in its name, all of its own were refused."""
    loop = federation(2)
    run(loop, "own", first=WINDOWS - 1)
    loop.write_rows(names_of(), 2)
    while loop.server.window < 2:
        for name in loop.members:
            loop.step(name, 1)
            if loop.server.window == 2:
                break
    own = next(
        message
        for _, topic, _, value in loop.committed
        if topic == "f.party-0.releases" and (message := loop.server.codec.decode(value)).kind == "frozen"
    )
    content = read_content(own.content, Frozen)
    content = Frozen(loop.server._run.manifest, content.means, content.weight)
    forged(loop, "frozen", 0, content_of(content), link=2**53)
    loop.settle()
    for seed in (3, 4, 5):
        loop.write_rows(names_of(first=100 * seed), seed)
        loop.settle()
        loop.restart(SERVER_MEMBER)
    assert loop.server.model == loop.party("party-0").progress.window == 5
    latest = [one for one in loop.published("model") if one["version"] == 5]
    assert all(one["columns"] for one in latest)
    refused = [one.error.reason for one in loop.members[SERVER_MEMBER].rejections]
    # In the window that the stranger spoke in, and at the next release after it at most.
    assert set(refused) <= {"another_answer", "ledger_went_back"}
    assert refused.count("ledger_went_back") <= 1


def test_a_question_is_answered_once_and_in_part_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects topics from names without end, and the names: a party announces anew under the same numbers,
    in steps, and goes on where it was."""
    monkeypatch.setattr(announcing, "AGAIN_AT_ONCE", 10)
    loop = federation(2, window={"rows": ROWS})
    loop.away = ["party-1"]
    names = names_of(25)
    loop.write_rows(names)
    loop.settle()
    before = len(loop.committed)
    asked = content_of(Entities([]))
    question = Message(1, loop.public.fingerprint, "(server)", 0, 77, "entities", 0, b"", asked)
    for _ in range(2):
        loop.write("f.party-0.asks", None, msgspec.msgpack.encode(question))
    for _ in range(8):
        loop.step("party-0", 1)
        loop.restart("party-0")
    said = [loop.server.codec.decode(value) for _, _, _, value in loop.committed[before:]]
    told = [read_content(one.content, Entities) for one in said]
    assert told[0].names == []
    assert [(one.first, len(one.names)) for one in told[1:]] == [(1, 10), (11, 10), (21, 5)]
    assert [name for one in told for name in one.names] == names
    assert [one.iteration for one in said] == list(range(said[0].iteration, said[0].iteration + 4))


def test_a_long_message_of_another_run_hides_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects long messages, whose numbers repeat from run to run: the parts of one that a party had heard
    whole before were passed over, and the party never answered."""
    monkeypatch.setattr(messages, "FRAGMENT_BYTES", 100)
    loop = federation(2)
    history(loop, None, 50.0)
    run(loop, "own")
    assert loop.server.model == WINDOWS
    assert {loop.party(one).progress.window for one in loop.parties} == {WINDOWS}
