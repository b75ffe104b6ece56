"""The link of host and guest: nobody else opens it, nothing is taken for something else, a redo is the same
bytes."""

from __future__ import annotations

import itertools

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from streamfl.contract.role import BadRecord
from streamfl.identity.keys import derive
from streamfl.quasi_newton.encryption.end_to_end import OVERHEAD, EncryptedLink

SECRET = bytes(range(32))
TOPIC, PLACE = "credit.guest.residuals", b"run 7, iteration 3"


def refused(link: EncryptedLink, envelope: bytes, topic: str = TOPIC, place: bytes = PLACE) -> None:
    with pytest.raises(BadRecord) as caught:
        link.open(envelope, topic, place)
    assert caught.value.reason == "envelope"


def test_the_other_end_opens_it() -> None:
    """Protects the payload on its way."""
    envelope = EncryptedLink(SECRET, "credit").seal(b"payload", TOPIC, PLACE)
    assert EncryptedLink(SECRET, "credit").open(envelope, TOPIC, PLACE) == b"payload"
    assert len(envelope) == len(b"payload") + OVERHEAD


def test_an_identical_redo_is_identical_bytes_and_another_payload_is_not() -> None:
    """Protects the laws of a redo: nobody can tell that a process crashed, and no keystream hides two
    payloads."""
    link = EncryptedLink(SECRET, "credit")
    assert link.seal(bytes(64), TOPIC, PLACE) == EncryptedLink(SECRET, "credit").seal(bytes(64), TOPIC, PLACE)
    one, two = link.seal(bytes(64), TOPIC, PLACE), link.seal(bytes(63) + b"\x01", TOPIC, PLACE)
    assert bytes(a ^ b for a, b in zip(one, two, strict=True))[16:] != bytes(63) + b"\x01"
    assert one[:16] != two[:16]


def test_an_envelope_fits_one_place_only() -> None:
    """Protects against replay: into another round, another direction, another federation, by another
    secret."""
    link = EncryptedLink(SECRET, "credit")
    envelope = link.seal(b"payload", TOPIC, PLACE)
    refused(link, envelope, place=b"run 7, iteration 4")
    refused(link, envelope, topic="credit.host.inner-products")
    refused(EncryptedLink(SECRET, "other"), envelope)
    refused(EncryptedLink(bytes(range(1, 33)), "credit"), envelope)
    # No bytes move from one field to the next.
    refused(link, envelope, topic=TOPIC + "r", place=PLACE[1:])
    for index, flip in itertools.product(range(len(envelope)), (1, 128)):
        refused(link, envelope[:index] + bytes([envelope[index] ^ flip]) + envelope[index + 1 :])
    for size in (0, 1, OVERHEAD, len(envelope) - 1):
        refused(link, envelope[:size])


def test_it_is_aes_siv_as_the_library_has_it() -> None:
    """Protects other implementations: RFC 5297 with two keys of 256 bits, and three fields beside the
    payload."""
    cipher = AESSIV(derive(SECRET, b"quasi-newton link tag") + derive(SECRET, b"quasi-newton link cipher"))
    expected = cipher.encrypt(b"payload", [b"credit", TOPIC.encode(), PLACE])
    assert EncryptedLink(SECRET, "credit").seal(b"payload", TOPIC, PLACE) == expected


def test_weak_secrets_and_empty_payloads_are_refused() -> None:
    """Protects the operator from a secret that was cut off."""
    with pytest.raises(ValueError, match="too few"):
        EncryptedLink(SECRET[:31], "credit")
    with pytest.raises(ValueError, match="empty"):
        EncryptedLink(SECRET, "credit").seal(b"", TOPIC, PLACE)
