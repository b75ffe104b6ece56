"""Alignment: both find what they have in common, and the messages tell nothing more."""

from __future__ import annotations

import hashlib
import itertools
import os

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.rows import alignment
from streamfl.quasi_newton.rows.alignment import Alignment, KeyedHashes, set_digest

HOST, GUEST, SESSION = b"h" * 32, b"g" * 32, b"credit/1"
P = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B


def ends(host: list[str], guest: list[str]) -> tuple[Alignment, Alignment]:
    return Alignment(HOST, SESSION, host, 1000), Alignment(GUEST, SESSION, guest, 1000)


def abscissa_of(name: str) -> bytes:
    """The first of SHA-256(content, 0), SHA-256(content, 1) ... that x^3 - 3 x + b is a square for."""
    parts = [part for field in (SESSION, name.encode()) for part in (len(field).to_bytes(8, "big"), field)]
    content = hashlib.sha256(b"streamfl alignment/1" + b"".join(parts)).digest()
    for attempt in itertools.count():
        found = hashlib.sha256(content + attempt.to_bytes(4, "big")).digest()
        x = int.from_bytes(found, "big")
        if x < P and pow((x**3 - 3 * x + B) % P, (P - 1) // 2, P) == 1:
            return found
    raise AssertionError


def multiplied(scalar: int, abscissa: bytes) -> bytes:
    """The abscissa of scalar P, by the textbook's formulas in Python's integers: the oracle."""
    x = int.from_bytes(abscissa, "big")
    y = pow((x**3 - 3 * x + B) % P, (P + 1) // 4, P)
    total: tuple[int, int] | None = None
    point: tuple[int, int] | None = (x, y)
    while scalar:
        if scalar & 1:
            total = added(total, point)
        point = added(point, point)
        scalar >>= 1
    assert total is not None
    return total[0].to_bytes(32, "big")


def added(one: tuple[int, int] | None, two: tuple[int, int] | None) -> tuple[int, int] | None:
    if one is None or two is None:
        return one or two
    (a, b), (c, d) = one, two
    if a == c and (b + d) % P == 0:
        return None
    slope = (3 * a * a - 3) * pow(2 * b, -1, P) if one == two else (d - b) * pow(c - a, -1, P)
    x = (slope * slope - a - c) % P
    return x, (slope * (a - x) - b) % P


@given(
    st.sets(st.text(max_size=6), max_size=8),
    st.sets(st.text(max_size=6), max_size=8),
    st.sets(st.text(max_size=6), max_size=8),
)
@settings(deadline=None, max_examples=25)
def test_both_find_the_intersection(common: set[str], host: set[str], guest: set[str]) -> None:
    """Protects training: rows of the two parties belong to the same entities. The oracle is the intersection
    of sets."""
    a, b = ends(list(common | host), list(common | guest))
    at_host, at_guest = a.blind_theirs(b.blind_own()), b.blind_theirs(a.blind_own())
    found = a.intersect(at_guest, at_host)
    assert found == b.intersect(at_host, at_guest)
    assert found.names == tuple(sorted((common | host) & (common | guest)))
    assert found.digest == set_digest(found.names, SESSION)


def test_a_point_is_multiplied_as_the_textbook_says() -> None:
    """Protects other implementations: the messages are abscissas of P-256, and nothing of the library's
    own."""
    party = Alignment(HOST, SESSION, ["anna"], 10)
    scalar = party._scalar.private_numbers().private_value
    assert party.blind_own() == [multiplied(scalar, abscissa_of("anna"))]
    assert multiplied(alignment.ORDER - 1, abscissa_of("anna")) == abscissa_of("anna")
    assert 1 <= scalar < alignment.ORDER


def test_what_is_sent_is_a_function_of_secret_session_and_set() -> None:
    """Protects a redo and its privacy: the same is the same bytes; another set in the session has not one
    point in common."""
    names = [f"person-{number}" for number in range(20)]
    first = Alignment(HOST, SESSION, names, 1000).blind_own()
    assert first == Alignment(HOST, SESSION, names[::-1], 1000).blind_own()
    for other in (
        Alignment(HOST, SESSION, names[:-1], 1000),
        Alignment(HOST, b"credit/2", names, 1000),
        Alignment(GUEST, SESSION, names, 1000),
    ):
        assert not set(first) & set(other.blind_own())


def test_the_order_tells_nothing_of_the_names() -> None:
    """Protects the rest of a set: with names in order, the places of common ones would show how many lie
    between."""
    names = [f"{number:04}" for number in range(200)]
    party = Alignment(HOST, SESSION, names, 1000)
    assert party.blind_own() == sorted(party.blind_own())
    order = [int(name) for _, name in party._blinded]
    ascents = sum(one < two for one, two in itertools.pairwise(order))
    assert 70 < ascents < 130


def test_the_other_cannot_try_names_out() -> None:
    """Protects entities that are not common: without the scalar a name's point is not to be found in the
    message."""
    sent = set(Alignment(HOST, SESSION, ["anna"], 10).blind_own())
    assert abscissa_of("anna") not in sent
    assert sent.isdisjoint(Alignment(GUEST, SESSION, ["anna"], 10).blind_own())
    # Keyed hashes are found at once, which is why they are not the default.
    key = b"k" * 32
    sent = KeyedHashes(key, SESSION, ["anna"], 10).blind_own()
    assert sent[0] in KeyedHashes(key, SESSION, ["otto", "anna"], 10).blind_own()


def test_points_that_are_none_are_refused() -> None:
    """Protects the scalar and the memory: nothing is multiplied but points of the curve, and not more than
    agreed."""
    party = Alignment(HOST, SESSION, ["anna"], 3)
    good = Alignment(GUEST, SESSION, ["anna", "otto", "ina"], 3).blind_own()
    none = next(x for x in range(1, 100) if pow((x**3 - 3 * x + B) % P, (P - 1) // 2, P) == P - 1)
    for points, reason in (
        ([*good, os.urandom(32)], "oversized"),
        ([good[0], good[0]], "repeated"),
        ([good[0][:-1]], "malformed"),
        ([good[0] + b"\x00"], "malformed"),
        ([b""], "malformed"),
        ([none.to_bytes(32, "big")], "malformed"),
        ([(P + 5).to_bytes(32, "big")], "malformed"),
        ([b"\xff" * 32], "malformed"),
    ):
        with pytest.raises(BadRecord) as caught:
            party.blind_theirs(points)
        assert caught.value.reason == reason
    for answer, reason in (([], "shape"), (good[:2], "shape")):
        with pytest.raises(BadRecord) as caught:
            party.intersect(answer, good)
        assert caught.value.reason == reason


def test_a_set_that_is_too_large_or_has_a_name_twice_is_refused() -> None:
    """Protects the other party from a question for every name there is, and rows from a double."""
    with pytest.raises(ValueError, match="more than the 2"):
        Alignment(HOST, SESSION, ["a", "b", "c"], 2)
    with pytest.raises(ValueError, match="twice"):
        Alignment(HOST, SESSION, ["a", "a"], 9)
    with pytest.raises(ValueError, match="too few"):
        Alignment(HOST[:31], SESSION, ["a"], 9)


def test_names_do_not_run_together() -> None:
    """Protects the digest and the points: sets that differ have other digests, sessions too."""
    digests = [
        set_digest(names, session)
        for names, session in (
            (["ab"], b"s"),
            (["a", "b"], b"s"),
            (["a", "b", ""], b"s"),
            ([], b"s"),
            (["s"], b""),
            (["ab"], b"t"),
        )
    ]
    assert len(set(digests)) == 6
    assert set_digest(["b", "a"], b"s") == set_digest(["a", "b"], b"s")


def test_keyed_hashes_find_the_intersection_too() -> None:
    """Protects the option that a federation may choose, with the same messages, checks and digest."""
    key, names = b"k" * 32, ["a", "b", "c"]

    def common(host: KeyedHashes, guest: KeyedHashes) -> dict[str, int]:
        return guest.places(host.blind_theirs(guest.blind_own()), guest.blind_theirs(host.blind_own()))

    host, guest = KeyedHashes(key, SESSION, names, 10), KeyedHashes(key, SESSION, ["c", "d", "a"], 10)
    assert common(host, guest) == {name: host.names_in_order.index(name) for name in ("a", "c")}
    found = guest.intersect(host.blind_theirs(guest.blind_own()), host.blind_own())
    assert (found.names, found.digest) == (("a", "c"), set_digest(["a", "c"], SESSION))
    assert common(KeyedHashes(b"l" * 32, SESSION, names, 10), guest) == {}
    assert common(KeyedHashes(key, b"other", names, 10), guest) == {}
    few = KeyedHashes(key, SESSION, ["a"], 2)
    for theirs, reason in (
        (few.blind_own() * 2, "repeated"),
        ([b"x"], "malformed"),
        (host.blind_own(), "oversized"),
    ):
        with pytest.raises(BadRecord) as caught:
            few.blind_theirs(theirs)
        assert caught.value.reason == reason
    with pytest.raises(ValueError, match="too few"):
        KeyedHashes(b"short", SESSION, names, 10)


def test_the_order_of_the_group_is_the_librarys() -> None:
    """Protects the scalar: uniform below the right number."""
    one = ec.derive_private_key(1, ec.SECP256R1()).public_key().public_numbers()
    last = ec.derive_private_key(alignment.ORDER - 1, ec.SECP256R1()).public_key().public_numbers()
    assert (one.x, one.y) == (last.x, P - last.y)
