"""What guest and host do alike with a round's vector: its product with the own columns goes to the coordinator, to be opened."""

from __future__ import annotations

from collections.abc import Callable

from streamfl.quasi_newton.background_tasks import Kind, Multiplying, Product, multiplied, read_product, request
from streamfl.quasi_newton.party import PartyTask
from streamfl.quasi_newton.party_settings import OPENING

__all__ = ["ask_for_product", "upload_product"]


def ask_for_product(party: PartyTask, vectors: list[bytes], numbers: bytes, then: Callable[[Product], None]) -> None:
    """Have the sum of vectors and of own numbers multiplied with the party's columns.

    numbers: empty: the one vector is taken as it is. then: what is done with the product.
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
        party.settings.masked,
    )
    party.outbox.ask(multiplied, request(content), lambda result: then(read_product(result)))


def upload_product(party: PartyTask, product: Product) -> None:
    """The coordinator is to open it. Its digest is remembered, by which the mask is found again."""
    party.progress.phase, party.progress.digest = OPENING, product.digest
    party.exchange.remember()
    party.exchange.upload("gradient", product.upload)
