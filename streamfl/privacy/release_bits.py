"""The bits that a release is drawn from: a function of a secret and of everything that the release is of.

A release that is made again, after a crash or an aborted transaction, is the same release: the same content in the same place draws
the same bits, and nothing new is told. Any other content, place or strength draws independent bits: reusing one draw for two
contents would let an observer compare what is beneath.
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
    """Which release it is. Nothing here is a floating-point number, which another machine may compute otherwise.

    ledger: identity of the ledger that it is charged to. federation, party: who releases.
    window: number of the window of rows. iteration: number of it in the fit. kind: of the release.
    parameters: all of the mechanism's: rates, variances, bounds, candidates.
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
    """So many draws' uniform bits (SHAKE-256), which nobody without the secret can tell from chance."""
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
