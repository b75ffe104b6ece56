"""Mistakes put into a role on purpose, and whether wrong messages find them; and what a role makes of the recorded ones."""

from __future__ import annotations

from typing import Any

import pytest

from streamfl.role import Rejection
from streamfl.testing.fuzz.campaign import run
from streamfl.testing.fuzz.federations import Corpus
from streamfl.testing.fuzz.member import NOW, Member


def check_found(owner: Any, name: str, wrong: Any, only: str, patch: pytest.MonkeyPatch) -> None:
    """With ``wrong`` in the place of an owner's attribute, a run over the targets whose names contain ``only`` finds defects."""
    patch.setattr(owner, name, wrong)
    # What is drawn follows from every bound in the code and from what was recorded, so a few seeds may pass by.
    assert any(run(4_000, seed=seed, only=only).defects for seed in range(1, 13))


def refused_of_the_recorded(member: Member, corpus: Corpus, federation: str) -> list[Rejection]:
    """What a member refuses of the real messages on its inputs and tables."""
    messages = corpus(federation, *member.channels.inputs, *member.channels.tables)
    replies = [reply for one in messages for reply in member.role.receive([member.decode(one)], NOW)]
    return [reply for reply in replies if isinstance(reply, Rejection)]


def trusts_the_sender(self: Any, *received: Any) -> None:
    return
