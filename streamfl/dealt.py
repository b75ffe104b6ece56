"""To whom a role's state belongs, so that it can move when its inputs get more partitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Dealt"]


@dataclass(frozen=True)
class Dealt:
    """State of clients, each of them in the partition in which its records come.

    client_of: by a key of the changelog, the client that is remembered under it; None: it is the partition's own, and stays.
    key_of: by a client's name, the key of its records; ValueError for a name that no key has.
    """

    client_of: Callable[[bytes], str | None]
    key_of: Callable[[str], bytes]
