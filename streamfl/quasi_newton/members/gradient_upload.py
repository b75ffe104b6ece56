"""Shared by guest and host: multiply a round's vector with the own columns, and upload the product for
decryption."""

from __future__ import annotations

from collections.abc import Callable

from streamfl.quasi_newton.members.background_tasks import (
    Kind,
    Multiplying,
    Product,
    multiplied,
    read_product,
    request,
)
from streamfl.quasi_newton.members.party import PartyTask
from streamfl.quasi_newton.members.training_progress import OPENING

__all__ = ["ask_for_product", "upload_product"]


def ask_for_product(
    party: PartyTask, vectors: list[bytes], numbers: bytes, then: Callable[[Product], None]
) -> None:
    """Start a background task that multiplies the sum of vectors and own numbers with the party's columns.

    numbers: empty: the one vector is taken as it is.
    then: called with the product.
    """
    rounds = party.rounds
    matrix = rounds.matrix
    content = Multiplying(
        rounds.hidden,
        vectors,
        numbers,
        matrix.astype("<i8").tobytes(),
        matrix.shape[1],
        Kind.of(rounds.upload_kind),
        party.exchange.place("residuals"),
        party.exchange.place("gradient"),
        party.settings.encryption.mask_gradients,
    )
    party.outbox.ask(multiplied, request(content), lambda result: then(read_product(result)))


def upload_product(party: PartyTask, product: Product) -> None:
    """Send the product to the coordinator to decrypt. Remembers the digest, which finds the mask again."""
    party.progress.phase, party.progress.digest = OPENING, product.digest
    party.exchange.remember()
    party.exchange.upload("gradient", product.upload)
