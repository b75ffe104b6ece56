"""The members of a quasi-Newton federation, and the topics between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamfl.quasi_newton.config import COORDINATOR, GUEST, HOST, QuasiNewtonFederation
from streamfl.simulation.vertical.members import HEAD, Columns, labels_section, member_sections

__all__ = ["BETWEEN", "members"]

BETWEEN = ("uploads", "decisions", "outputs", "residuals")
"""Kinds of messages between members of a training: the ends of their topics' names."""


def members(federation: QuasiNewtonFederation, columns: Mapping[str, Columns]) -> dict[str, dict[str, Any]]:
    """By member, the sections in which its settings differ from the others', but for its keys and secrets.
    The coordinator is :data:`HEAD`.
    """
    hosts = {host: member_sections(HOST, host, columns[host]) for host in federation.hosts}
    guest = federation.guest_party
    hosts[guest] = member_sections(GUEST, guest, columns[guest], labels_section())
    return {**{party: hosts[party] for party in federation.parties}, HEAD: member_sections(COORDINATOR)}
