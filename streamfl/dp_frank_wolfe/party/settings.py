"""A party's settings, and its progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.messages import Message
from streamfl.dp_frank_wolfe.party.fit import ReleaseContext
from streamfl.dp_frank_wolfe.party.window import Bounds
from streamfl.encoding.wire import Codec, Count
from streamfl.privacy.anchor import Anchor

__all__ = ["FITTING", "WAITING", "PartyProgress", "PartySettings"]

# Phases. WAITING for a manifest; FITTING from when its window is frozen until the model has come.
WAITING, FITTING = range(2)


@dataclass(frozen=True)
class PartySettings:
    """own: the party's name. public: what every member has to have alike.

    bounds, label_bounds: of the columns, and of the label. ledger: its name. limit: most entities that wait.
    ledger_limit: entities that the ledger has room for. anchor: None where nothing outlasts the process.
    secret: noise is drawn from it.
    """

    own: str
    public: Public
    bounds: Bounds
    label_bounds: Bounds
    ledger: str
    ledger_limit: int
    limit: int
    anchor: Anchor | None
    secret: bytes
    codec: Codec[Message]

    @property
    def columns(self) -> int:
        """Number of the party's columns."""
        return len(self.bounds.bound)

    @property
    def rows(self) -> int:
        """Rows of a window."""
        return self.public.settings.window.rows

    @property
    def federation(self) -> str:
        return self.public.settings.federation.name

    @property
    def identity(self) -> bytes:
        """The anchor's identity. Zeros if there is no anchor."""
        return bytes(16) if self.anchor is None else self.anchor.identity

    def place(self, window: int) -> ReleaseContext:
        """Where releases of a window belong."""
        return ReleaseContext(f"{self.ledger} {self.identity.hex()}", self.federation, self.own, window, self.secret)


class PartyProgress(msgspec.Struct, array_like=True):
    """A party's progress; remembered as ``progress``.

    window: the latest that was frozen. iteration: the next that may be asked. announced: messages with names so far.
    link: this federation's last link in the ledger's chain of fits.
    manifest, heard: digests of the window's manifest, and of the server's latest message about it. They show what comes again.
    """

    window: Count = 0
    phase: Annotated[int, msgspec.Meta(ge=0, le=1)] = WAITING
    iteration: Count = 0
    announced: Count = 0
    link: Count = 0
    manifest: bytes = b""
    heard: bytes = b""
