"""Which client each part of a role's state belongs to, so that it can move when the inputs get more
partitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Dealt"]


@dataclass(frozen=True)
class Dealt:
    """The state of clients. Each client's state is in the partition of its records.

    client_of: from a changelog key to the client whose state is under it; None: the state belongs to the
    partition, and stays.
    key_of: from a client's name to the key of its records; ValueError for a name that no key has.
    """

    client_of: Callable[[bytes], str | None]
    key_of: Callable[[str], bytes]
