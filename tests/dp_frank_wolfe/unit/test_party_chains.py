"""A party whose ledger went back, with the file beside it, is told of by whoever has read its releases."""

from __future__ import annotations

import pytest
from dp_frank_wolfe.hand_made import Server, hands, names_of, settings_of

from streamfl.dp_frank_wolfe.messages import Message

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
        server.tell(party, *answer[:2], 1, answer[2], link=5, head=bytes(24))
        asked = server.said
    server.restart()
    for party, ask in asked:
        answer = parties[party].hear(ask)
        assert answer is not None
        assert server.hear(party, *answer[:2], 1, answer[2], link=second, head=bytes(24)) == wanted
    assert [notice.reason for notice in server.role.notices()] == wanted
    assert [message.iteration for _, message in server.said] == ([] if wanted else [1, 1])
