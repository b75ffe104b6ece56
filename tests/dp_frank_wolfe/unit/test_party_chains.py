"""A party whose ledger went back, with the file beside it, is told of by whoever has read its releases."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from dp_frank_wolfe.hand_made import Server, hands, names_of, settings_of
from dp_frank_wolfe.party_driver import Driver, settings

from streamfl.contract.role import BadRecord
from streamfl.dp_frank_wolfe.messages import Message
from streamfl.dp_frank_wolfe.privacy.chains import PartyChains
from streamfl.roles.notices import Notices
from streamfl.state.changelog import ChangedParts


def told(chains: PartyChains, notices: Notices, message: Message) -> list[str]:
    with suppress(BadRecord):
        chains.check("a", message)
        chains.hear("a", message)
    return [notice.reason for notice in notices.collect()]


def test_an_old_copy_of_all_that_a_party_has_is_told_of(tmp_path: Path) -> None:
    """Protects the promise where a party's machine and topics were put back together: the party itself cannot
    know of it."""
    party = Driver(settings(tmp_path)).begun()
    old, file = dict(party.state), shutil.copy(tmp_path / "ledger", tmp_path / "copy")
    parts, notices = ChangedParts(), Notices()
    chains = PartyChains(parts, ["a", "b"], notices)
    for message in [*party.sent[1:], *party.feed([party.ask(0)]), *party.feed([party.ask(1)])]:
        assert told(chains, notices, message) == []
    shutil.copy(file, tmp_path / "ledger")
    back = Driver(party.settings, old)
    (message,) = back.feed([back.ask(3)])
    assert back.role.trouble is None
    ((key, value),) = parts.changed_state()
    assert value is not None
    restored = ChangedParts()
    again = PartyChains(restored, ["a", "b"], notices)
    restored.restore(key, value)
    assert told(chains, notices, message) == told(again, notices, message) == ["ledger_went_back"]
    with pytest.raises(BadRecord):
        restored.restore(b"chain/z", value)


BEHIND = ["ledger_went_back"]


@pytest.mark.parametrize(("second", "wanted"), [(6, []), (5, BEHIND), (2, BEHIND)])
def test_the_server_compares_what_it_hears(second: int, wanted: list[str]) -> None:
    """Protects against a warning that nobody gives, through a restart: the release is not used, and the party
    is asked no more."""
    server = Server(settings_of())
    parties = hands(server)
    server.announce(names_of())
    asked: list[tuple[str, Message]] = []
    for party, manifest in server.said:
        answer = parties[party].hear(manifest)
        assert answer is not None
        assert server.hear(party, *answer[:2], 1, answer[2], link=5, head=bytes(24)) == []
        asked = server.said
    server.restart()
    for party, ask in asked:
        answer = parties[party].hear(ask)
        assert answer is not None
        assert server.hear(party, *answer[:2], 1, answer[2], link=second, head=bytes(24)) == wanted
    assert [notice.reason for notice in server.role.notices()] == wanted
    assert [message.iteration for _, message in server.said] == ([] if wanted else [1, 1])
