"""The members of an FDSKL federation, and the topics between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamfl.fdskl.config import WORKER, FdsklFederation
from streamfl.simulation.vertical.members import LABELS, Columns, labels_section, member_sections

__all__ = ["BETWEEN", "labels_topic", "members"]

BETWEEN = ("incarnations", "rounds", "sums", "revisions", "turns")
"""Kinds of messages between parties: the ends of their topics' names."""


def labels_topic(federation: FdsklFederation, party: str) -> str:
    """The topic of an active party's labels."""
    return LABELS if party == federation.active_party else f"{LABELS}-{party}"


def members(federation: FdsklFederation, columns: Mapping[str, Columns]) -> dict[str, dict[str, Any]]:
    """By party, the sections in which its settings differ from the others'. columns: by party."""
    labels = {party: labels_section(labels_topic(federation, party)) for party in federation.active_parties}
    return {
        party: member_sections(WORKER, party, columns[party], labels.get(party))
        for party in federation.parties
    }
