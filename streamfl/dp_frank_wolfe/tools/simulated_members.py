"""The members of a DP Frank-Wolfe federation, and the topics between them."""

from __future__ import annotations

from typing import Any

from streamfl.dp_frank_wolfe.config import PARTY, SERVER, ColumnFederation
from streamfl.simulation.vertical.members import HEAD, labels_section, member_sections

__all__ = ["ASKS", "BETWEEN", "RELEASES", "members"]

BETWEEN = RELEASES, ASKS = ("releases", "asks")
"""Kinds of messages between a party and the server: the ends of their topics' names."""


def members(federation: ColumnFederation) -> dict[str, dict[str, Any]]:
    """By member, the sections in which its settings differ from the others', but for bounds and secrets. The
    server is :data:`HEAD`. Every party knows the labels.
    """
    parties = {
        party: member_sections(PARTY, party, count, labels_section())
        for party, count in federation.columns.items()
    }
    return {**{party: parties[party] for party in federation.parties}, HEAD: member_sections(SERVER)}
