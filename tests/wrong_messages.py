"""Deliberate bugs in a role, to check that wrong messages find them; and a role's refusals of the recorded messages."""

from __future__ import annotations

from typing import Any

import pytest

from streamfl.contract.role import Rejection
from streamfl.testing.fuzz.campaign import run
from streamfl.testing.fuzz.federations import Corpus
from streamfl.testing.fuzz.member import NOW, FuzzedMember


def check_found(owner: Any, name: str, wrong: Any, only: str, patch: pytest.MonkeyPatch) -> None:
    """With ``wrong`` in place of an owner's attribute, a run over the targets whose names contain ``only`` finds defects."""
    patch.setattr(owner, name, wrong)
    # The draws depend on every bound in the code and on the recordings, so a few seeds may find nothing.
    assert any(run(4_000, seed=seed, only=only).defects for seed in range(1, 13))


def refused_of_the_recorded(member: FuzzedMember, corpus: Corpus, federation: str) -> list[Rejection]:
    """The refusals of a member for the real messages on its inputs and tables."""
    messages = corpus(federation, *member.channels.inputs, *member.channels.tables)
    replies = [reply for one in messages for reply in member.role.receive([member.decode(one)], NOW)]
    return [reply for reply in replies if isinstance(reply, Rejection)]


def trusts_the_sender(self: Any, *received: Any) -> None:
    return
