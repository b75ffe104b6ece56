"""The random bits of a release: a function of a secret and of everything that the release depends on.

A release that is made again, after a crash or an aborted transaction, is the same release: the same content
in the same place draws the same bits, and reveals nothing new. Any other content, place or strength draws
independent bits: reusing one draw for two contents would let an observer compare the contents.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fractions import Fraction

import msgspec

from streamfl.privacy.integer_distribution import DRAW_BYTES

__all__ = ["Release", "release_bits"]


@dataclass(frozen=True)
class Release:
    """Identifies a release. No field is a floating-point number, because another machine may compute such a
    number differently.

    ledger: identity of the ledger that it is charged to.
    federation, party: who releases.
    window: number of the window of rows.
    iteration: its number in the fit.
    kind: of the release.
    parameters: all parameters of the mechanism: rates, variances, bounds, candidates.
    digest: of the window's content and of everything that was released and read before.
    """

    ledger: str
    federation: str
    party: str
    window: int
    iteration: int
    kind: str
    parameters: tuple[str | int | bytes | Fraction, ...]
    digest: bytes


def release_bits(secret: bytes, release: Release, draws: int) -> bytes:
    """Uniform bits for ``draws`` draws (SHAKE-256), which nobody without the secret can tell from random
    bits."""
    if len(secret) < 32:
        raise ValueError(f"{len(secret)} bytes are too few for a secret")
    parameters = [str(given) if isinstance(given, Fraction) else given for given in release.parameters]
    content = (
        b"streamfl release/1",
        secret,
        release.ledger,
        release.federation,
        release.party,
        release.window,
        release.iteration,
        release.kind,
        parameters,
        release.digest,
        draws,
    )
    return hashlib.shake_256(msgspec.msgpack.encode(content)).digest(draws * DRAW_BYTES)
