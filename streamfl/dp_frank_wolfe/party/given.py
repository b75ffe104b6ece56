"""What a party has besides its configuration file."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamfl.dp_frank_wolfe.config import DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.party.fit import ReleaseContext
from streamfl.dp_frank_wolfe.party.window import Bounds
from streamfl.privacy.anchor import Anchor

__all__ = ["PartyGiven"]


@dataclass(frozen=True)
class PartyGiven:
    """secret: noise is drawn from it. anchor: None where nothing outlasts the process.

    bounds, label_bounds: of the columns and of the label, checked.
    """

    secret: bytes = field(repr=False)
    anchor: Anchor | None
    bounds: Bounds
    label_bounds: Bounds

    @property
    def identity(self) -> bytes:
        """The anchor's identity. Zeros if there is no anchor."""
        return bytes(16) if self.anchor is None else self.anchor.identity

    def place(self, settings: DPFrankWolfeSettings, window: int) -> ReleaseContext:
        """Where releases of a window belong."""
        ledger = f"{settings.ledger_name} {self.identity.hex()}"
        return ReleaseContext(
            ledger, settings.federation.name, settings.required_party(), window, self.secret
        )
