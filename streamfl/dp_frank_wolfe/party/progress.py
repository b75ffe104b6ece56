"""How far a party has come."""

from __future__ import annotations

from typing import Annotated

import msgspec

from streamfl.encoding.wire import Count

__all__ = ["FITTING", "WAITING", "PartyProgress"]

# Phases. WAITING for a manifest; FITTING from when its window is frozen until the model has come.
WAITING, FITTING = range(2)


class PartyProgress(msgspec.Struct, array_like=True):
    """A party's progress; remembered as ``progress``.

    window: the latest that was frozen.
    iteration: the next that may be asked.
    announced: messages with names so far.
    link: this federation's last link in the ledger's chain of fits.
    manifest, heard: digests of the window's manifest, and of the server's latest message about it. They show
    what comes again."""

    window: Count = 0
    phase: Annotated[int, msgspec.Meta(ge=0, le=1)] = WAITING
    iteration: Count = 0
    announced: Count = 0
    link: Count = 0
    manifest: bytes = b""
    heard: bytes = b""
