"""The members of a VAFL federation, and the topics between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamfl.records.entities import VerticalMembers
from streamfl.simulation.vertical.members import HEAD, Columns, labels_section, member_sections
from streamfl.vafl.config import COORDINATOR, PARTY

__all__ = ["BETWEEN", "members"]

BETWEEN = UP, DOWN = ("embeddings", "gradients")
"""Kinds of messages between a party and the coordinator: the ends of their topics' names."""


def members(federation: VerticalMembers, columns: Mapping[str, Columns]) -> dict[str, dict[str, Any]]:
    """By member, the sections in which its settings differ from the others'. The coordinator is
    :data:`HEAD`."""
    return {
        HEAD: member_sections(COORDINATOR, labels=labels_section()),
        **{party: member_sections(PARTY, party, columns[party]) for party in federation.parties},
    }
