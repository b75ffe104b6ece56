"""What coordinator, broker and a host that cheats can read in everything that a federation of roles has
written."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quasi_newton.federations import Secrets
from quasi_newton.laws.closed_loop import ClosedLoop
from quasi_newton.laws.test_closed_loop import federation as untrained
from scipy.stats import kstwobign

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.quasi_newton.ciphertext_attacks import quotient, signed
from benchmarks.quasi_newton.coordinator_attacks import distance_from_uniform, slots_of
from streamfl.contract.role import BadRecord
from streamfl.learning.accuracy import area_under_curve
from streamfl.quasi_newton.encryption.bignum import from_bytes, gcd
from streamfl.quasi_newton.encryption.ciphertexts import decode_ciphertexts, encode_ciphertexts
from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey
from streamfl.quasi_newton.encryption.packing import Packing
from streamfl.quasi_newton.encryption.randomness import SecretRandomness
from streamfl.quasi_newton.learning.own_columns import PRODUCTS
from streamfl.quasi_newton.messages import Blinded, Message, Opened, codec, place_of, read_content, records_of
from streamfl.quasi_newton.rows.alignment import POINT_BYTES
from streamfl.quasi_newton.training import host as host_module
from streamfl.quasi_newton.training.background_tasks import Product
from streamfl.quasi_newton.training.party import PartyTask
from streamfl.quasi_newton.training.training_progress import TRAINED

pytestmark = pytest.mark.long

ROWS = 220
LEARNING = {"epochs": 6, "tolerance": 0.0, "regularisation": 0.0}
SEALED = ("f.h1.residuals", "f.h1.outputs")


def federation(secrets: Secrets, hosts: int = 1, **sections: dict[str, Any]) -> ClosedLoop:
    sections["learning"] = {**LEARNING, **sections.get("learning", {})}
    loop = untrained(hosts, secrets, **sections)
    loop.write_table(ROWS, 3, hosts)
    return loop


def trained(secrets: Secrets, hosts: int = 1, **sections: dict[str, Any]) -> ClosedLoop:
    loop = federation(secrets, hosts, **sections)
    loop.settle()
    assert loop.party("g").progress.phase == TRAINED
    return loop


def private_key(loop: ClosedLoop) -> PaillierPrivateKey:
    key = loop.members["c"].role.task(0).given.private_key
    assert isinstance(key, PaillierPrivateKey)
    return key


def said(loop: ClosedLoop, topic: str, *kinds: str) -> Iterator[Message]:
    """The messages of a topic, uncommitted ones too."""
    own = codec(loop.members["c"].settings.message_bytes)
    for _, name, value in loop.writes:
        if name == topic and (not kinds or own.decode(value).kind in kinds):
            yield own.decode(value)


def payload(loop: ClosedLoop, topic: str, message: Message) -> bytes:
    """What host and guest read of a message between them."""
    return loop.party("g").given.links["h1"].open(message.content, topic, place_of(message))


def decrypted(loop: ClosedLoop, content: bytes) -> list[int]:
    key = private_key(loop)
    size = key.public.ciphertext_bytes
    return key.decrypt([from_bytes(content[at : at + size]) for at in range(0, len(content), size)])


def residues(loop: ClosedLoop, party: str) -> list[tuple[int, list[int]]]:
    """By round, what the coordinator decrypted of a party's uploads."""
    return [(one.round, decrypted(loop, one.content)) for one in said(loop, f"f.{party}.uploads", "gradient")]


# ---- the coordinator


def farthest(count: int) -> float:
    """From uniform, by Kolmogorov's distance, of all but one sample of random numbers in a thousand."""
    return float(kstwobign.isf(1e-3)) / count**0.5


def test_a_coordinator_decrypts_uniform_numbers_and_sums_of_inner_products(secrets: Secrets) -> None:
    """Protects gradients, steps and the model: with masks, all that the coordinator decrypts beside sums
    looks drawn at random."""
    loop = trained(secrets, hosts=2)
    key, parties = private_key(loop).public, ["g", "h1", "h2"]
    for party in parties:
        own = {"ready", "joined", "gradient"} | ({"sums"} if party == "g" else set())
        assert {message.kind for message in said(loop, f"f.{party}.uploads")} == own
    seen = [residue for party in parties for _, vector in residues(loop, party) for residue in vector]
    most = farthest(len(seen))
    assert len(seen) > 40
    assert len(set(seen)) == len(seen)
    assert distance_from_uniform(seen, int(key.n)) < most
    # The lowest slot as well, where a mask that is only as wide as a slot would leave carries.
    width = Packing(key, loop.party("g").settings.kinds.gradients).width
    assert distance_from_uniform([int(one) % 2**width for one in seen], 2**width) < most

    # The sums are those of all parties: the first is |g|^2, and nobody's share of it.
    trace, settings = loop.direct(), loop.party("g").settings
    first = next(said(loop, "f.g.uploads", "sums"))
    products = Packing(key, settings.products).unpack(decrypted(loop, first.content), 2)
    bare = [
        settings.kinds.gradients.decode(own[0]) / (4 * settings.learning.batch) for own in trace.gradients
    ]
    squares = [float(own @ own) for own in bare]
    assert PRODUCTS.decode(np.array(products[:1], dtype=object))[0] == pytest.approx(sum(squares), rel=1e-12)
    assert all(abs(sum(squares) - share) > 1e-3 * share for share in squares)


# ---- a host that cheats


def test_a_host_has_no_more_residuals_decrypted_than_an_upload_holds(
    secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects labels from one who uploads residuals as its gradient: an upload a round is opened, and of its
    fixed size.

    That is all that protects: what is in it, the coordinator cannot see.
    """
    loop = federation(secrets)
    told: list[bytes] = []

    def cheat(party: PartyTask, vectors: list[bytes], numbers: bytes, then: Any) -> None:
        key, kind = private_key(loop).public, party.rounds.upload_kind
        packing, told[:] = Packing(key, kind), vectors
        packed = packing.pack_ciphertexts(decode_ciphertexts(key, vectors[0], party.settings.learning.batch))
        then(
            Product(
                b"", encode_ciphertexts(key, packed[: packing.plaintexts(len(party.rounds.matrix.T))]), b""
            )
        )

    monkeypatch.setattr(host_module, "ask_for_product", cheat)
    for _ in range(200):
        for name in loop.members:
            loop.step(name)
        loop.now += 1.0
        if any(said(loop, "f.h1.decisions", "opened")):
            break
    host, key = loop.party("h1"), private_key(loop).public
    opened = read_content(next(said(loop, "f.h1.decisions", "opened")).content, Opened).residues
    packing = Packing(key, host.settings.kinds.gradients)
    size = key.bits // 8
    plaintexts = [int.from_bytes(opened[at : at + size], "big") for at in range(0, len(opened), size)]
    count = len(plaintexts) * packing.slots
    read = slots_of(plaintexts, count, host.settings.kinds.gradients, packing, int(key.n))
    guest = loop.party("g")
    signs = guest.rows.signs[: host.settings.learning.batch]
    # So many labels of a batch, and not one more.
    assert count == packing.slots * packing.plaintexts(3) < 10 < len(signs)
    assert np.array_equal(np.sign(-np.array(read, dtype=float)), signs[:count])

    # The next ones, uploaded in the same round, are refused and counted.
    coordinator = loop.members["c"]
    before = coordinator.role.counts.decryptions
    ciphertexts = decode_ciphertexts(key, told[0], len(signs))
    others = encode_ciphertexts(
        key, packing.pack_ciphertexts(ciphertexts[count : 2 * count])[: len(plaintexts)]
    )
    first = next(said(loop, "f.h1.uploads", "gradient"))
    refused: dict[bytes, str] = {others: "repeated_decryption", others * 2: "repeated_decryption"}
    for content, reason in refused.items():
        again = Message(*(getattr(first, name) for name in first.__struct_fields__[:-1]), content)
        for value in records_of(codec(coordinator.settings.message_bytes), again):
            loop.write("f.h1.uploads", None, value)
        coordinator.rejections.clear()
        loop.step("c")
        assert [one.error.reason for one in coordinator.rejections] == [reason]
    assert coordinator.role.counts.refused_decryptions == 2
    assert coordinator.role.counts.decryptions == before


# ---- the broker


def label_auc(loop: ClosedLoop, contents: list[bytes], signs: Any) -> float:
    """AUC of labels by what the coordinator decrypts of bytes that may be residuals, the first batch's."""
    key = private_key(loop)
    size, n = key.public.ciphertext_bytes, int(key.public.n)
    numbers = np.zeros(len(signs))
    for content in contents:
        for place in range(len(signs)):
            one = from_bytes(content[place * size : (place + 1) * size])
            numbers[place] += float(signed(key.decrypt([one if gcd(one, n) == 1 else 1])[0], n)) / n
    return area_under_curve(-numbers, (signs > 0).astype(float))


def fewest_values(count: int) -> float:
    """So many bytes have more values than this where each byte is as likely as any other: six deviations
    below the mean."""
    one, two = (255 / 256) ** count, (254 / 256) ** count
    variance = 256 * one + 256 * 255 * two - (256 * one) ** 2
    return 256 * (1 - one) - 6 * math.sqrt(variance)


def test_a_coordinator_that_runs_the_broker_reads_nothing_between_host_and_guest(secrets: Secrets) -> None:
    """Protects outputs and labels where the coordinator's organisation runs Kafka: it could decrypt whatever
    is not sealed."""
    loop = trained(secrets)
    signs = loop.party("g").rows.signs[:100]
    first = [next(said(loop, "f.h1.residuals", "residuals"))]
    assert label_auc(loop, [payload(loop, "f.h1.residuals", one) for one in first], signs) > 0.999
    # Without the tag in front, and with it.
    for skipped in (0, 16):
        assert 0.3 < label_auc(loop, [one.content[skipped:] for one in first], signs) < 0.7
    key = private_key(loop).public
    kinds = set()
    for topic in SEALED:
        for message in said(loop, topic):
            kinds.add(message.kind)
            content = payload(loop, topic, message)
            assert content not in message.content
            assert len(set(message.content)) > fewest_values(len(message.content))
            with pytest.raises(BadRecord):
                decode_ciphertexts(key, message.content, len(message.content) // key.ciphertext_bytes)
    assert kinds == {"blinded", "answer", "aligned", "outputs", "residuals", "dots"}


def test_what_stands_beside_ciphertexts_does_not_follow_labels(secrets: Secrets) -> None:
    """Protects labels from who sees records and cannot decrypt: with every label turned, order, headers and
    sizes are the same."""
    seen, signs = [], []
    for turned in (False, True):
        loop = federation(secrets, learning={"optimiser": "sgd", "epochs": 2})
        labels = [one for topic, one in loop.members["g"].unread if topic == "labels"]
        for record in labels if turned else []:
            assert record.key is not None
            loop.write(
                "labels", record.key.decode(), b'{"y":0}' if record.value == b'{"y":1}' else b'{"y":1}'
            )
        loop.settle()
        topics = (*SEALED, *(f"f.{party}.{way}" for party in ("g", "h1") for way in ("uploads", "decisions")))
        messages = [(topic, message) for topic in topics for message in said(loop, topic)]
        seen.append(
            [(topic, one.kind, one.round, one.alignment, len(one.content)) for topic, one in messages]
        )
        signs.append(loop.party("g").rows.signs)
    assert np.array_equal(signs[0], -signs[1])
    assert len(seen[0]) > 40
    assert seen[0] == seen[1]


# ---- work that is done again


def at_places(loop: ClosedLoop) -> dict[tuple[str, str, int, int], set[int]]:
    """Every ciphertext and residue that was written, committed or not, by topic, kind, round and index."""
    found: dict[tuple[str, str, int, int], set[int]] = {}
    size = private_key(loop).public.ciphertext_bytes
    for topic in (*SEALED, "f.g.uploads", "f.h1.uploads"):
        for message in said(loop, topic, "outputs", "residuals", "dots", "gradient", "sums"):
            content = payload(loop, topic, message) if topic in SEALED else message.content
            for index in range(len(content) // size):
                place = (topic, message.kind, message.round, index)
                found.setdefault(place, set()).add(from_bytes(content[index * size : (index + 1) * size]))
    return found


def interrupted(secrets: Secrets, altered: bool) -> ClosedLoop:
    """A training in which guest and host end at each message and do it again. altered: with another label of
    one customer."""
    loop = federation(secrets, learning={"epochs": 1})
    if altered:
        name = b"customer 20"
        label = next(
            one.value for topic, one in loop.members["g"].unread if topic == "labels" and one.key == name
        )
        loop.write("labels", name.decode(), b'{"y":0}' if label == b'{"y":1}' else b'{"y":1}')
    for _ in range(300):
        moved = False
        for name, member in loop.members.items():
            if name != "c" and member.unread:
                moved |= loop.step_again(name)
            else:
                moved |= loop.step(name)
        if not moved:
            if loop.party("g").progress.phase == TRAINED:
                return loop
            loop.now += 5.0
    raise AssertionError("the training does not end")


def shown(secrets: Secrets) -> tuple[set[int], int, int]:
    """Of two lives of a federation with the same secrets, the second with an altered label and without its
    state: differences that quotients show, how many places have the same bytes in both, and differences of
    masked residues that are as short as gradients."""
    one, two = interrupted(secrets, altered=False), interrupted(secrets, altered=True)
    first, second = at_places(one), at_places(two)
    key = private_key(one)
    assert first.keys() == second.keys()
    # An identical redo is identical bytes: every place has one ciphertext in a life, whatever was lost.
    assert {len(ciphertexts) for life in (first, second) for ciphertexts in life.values()} == {1}
    read, same, short = set(), 0, 0
    width = Packing(key.public, one.party("g").settings.kinds.gradients).width
    for place in first:
        (a,), (b,) = first[place], second[place]
        same += a == b
        if a == b:
            continue
        difference = quotient(key.public, b, a)
        if difference is not None:
            read.add(difference)
        if place[1] == "gradient":
            (x,), (y,) = key.decrypt([a]), key.decrypt([b])
            short += abs(signed(int(y) - int(x), int(key.public.n))) < 2 ** (4 * width + 1)
    return read, same, short


def test_two_lives_with_one_altered_label_show_no_difference(secrets: Secrets) -> None:
    """Protects what was sent before state was lost, uncommitted records among it: what was not altered is the
    same bytes, and where something was, no quotient of ciphertexts and no difference of masked residues shows
    it.
    """
    read, same, short = shown(secrets)
    assert read == set()
    assert short == 0
    # The host's first outputs do not depend on labels.
    assert same == 100


def test_randomness_by_place_alone_shows_the_altered_label(
    secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the test above: the mutant that draws by place and not by content shows which label was
    altered, and how."""
    monkeypatch.setattr(SecretRandomness, "digest", lambda self, ciphertexts: bytes(32))
    read, _, short = shown(secrets)
    assert read & {2**26, -(2**26)}
    assert short > 0


def test_an_alignment_that_is_made_again_with_another_set_shares_no_point(secrets: Secrets) -> None:
    """Protects names: the guest ends after it has sent its points, hears of one more customer, and sends
    other points."""
    loop = federation(secrets)
    guest = loop.members["g"]
    for _ in range(100):
        if any(topic == "f.g.decisions" for topic, _ in guest.unread):
            break
        for name in loop.members:
            loop.step(name)
        loop.now += 1.0
    loop.step("g", 1, lost=True)
    late = b'{"x0":0.5,"x1":0.5,"x2":0.5}'
    loop.write("g-samples", "customer 9999", late)
    loop.write("labels", "customer 9999", b'{"y":1}')
    guest.unread.rotate(2)
    loop.step("g")
    points = []
    for message in said(loop, "f.h1.residuals", "blinded"):
        content = read_content(payload(loop, "f.h1.residuals", message), Blinded).points
        points.append({content[at : at + POINT_BYTES] for at in range(0, len(content), POINT_BYTES)})
    assert [len(one) for one in points] == [ROWS, ROWS + 1]
    assert all(one.isdisjoint(two) for one, two in itertools.combinations(points, 2))
