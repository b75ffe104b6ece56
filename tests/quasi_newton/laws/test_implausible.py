"""Members that tell numbers beyond the public bounds, or have others added up: trainings end, and somebody
says why."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from quasi_newton.federations import ALIGNMENT, Secrets
from quasi_newton.laws.closed_loop import ClosedLoop
from quasi_newton.laws.test_closed_loop import federation as untrained
from quasi_newton.laws.test_eavesdroppers import LEARNING, ROWS, federation, said
from quasi_newton.laws.test_retraining import parties

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.encryption.ciphertexts import decode_ciphertexts, encode_ciphertexts
from streamfl.quasi_newton.encryption.keys import PaillierPublicKey
from streamfl.quasi_newton.encryption.packing import Packing
from streamfl.quasi_newton.learning.descent import Descent, DescentSettings
from streamfl.quasi_newton.learning.own_columns import PRODUCTS
from streamfl.quasi_newton.messages import (
    COORDINATOR_NAME,
    VERSION,
    Joined,
    Message,
    Ready,
    StepDecision,
    content_of,
    read_content,
)
from streamfl.quasi_newton.training.guest import GuestTask
from streamfl.quasi_newton.training.rounds import TrainingRounds
from streamfl.quasi_newton.training.training_progress import FAILED, OPENING, TRAINED
from streamfl.roles.fragment_encoding import MARK, split

SHORT: dict[str, Any] = {"learning": {"epochs": 1}}


def lying(patch: pytest.MonkeyPatch, name: str, factor: int) -> None:
    """A party tells residuals or outputs that are so many times the public bound, in each row with a sign of
    its own."""
    honest = TrainingRounds.own_numbers

    def own_numbers(self: TrainingRounds) -> Any:
        found = honest(self)
        if self._settings.own_party != name:
            return found
        signs = np.random.default_rng(self._progress.round).choice([-1, 1], len(found))
        return found + signs * factor * self._settings.kinds.inner_products.largest

    patch.setattr(TrainingRounds, "own_numbers", own_numbers)


@pytest.mark.parametrize(("name", "factor"), [("h1", 2**6), ("h1", 2**20), ("g", 2**10)])
def test_who_tells_more_than_the_bounds_ends_the_training(
    monkeypatch: pytest.MonkeyPatch, secrets: Secrets, name: str, factor: int
) -> None:
    """Protects the others' models: sums of such numbers overflow their slots, or are wrong and fit, and were
    taken in silence."""
    lying(monkeypatch, name, factor)
    loop = federation(secrets, **SHORT)
    loop.settle()
    assert [loop.party(one).progress.phase for one in parties(loop)] == [FAILED] * 2
    other = "g" if name == "h1" else "h1"
    assert (
        "numbers within the public bounds cannot give what the coordinator decrypted"
        in loop.party(other).progress.failure
    )
    assert loop.members[other].role.counts.implausible_openings == 1
    assert [member.role.counts.trainings for member in loop.members.values()] == [0] * 3


@pytest.mark.parametrize("topic", ["f.h1.decisions", "f.g.decisions", "f.h1.uploads", "f.g.uploads"])
def test_one_record_of_a_stranger_stops_no_federation_for_good(secrets: Secrets, topic: str) -> None:
    """Protects a federation without keys: that a training has failed, told to one member in another one's
    name, ends it for all, and the next one succeeds. The others waited for that member for ever."""
    loop = federation(secrets, **SHORT)
    loop.until(lambda: loop.party("h1").progress.phase == loop.party("g").progress.phase == OPENING)
    _, party, kind = topic.split(".")
    sender = COORDINATOR_NAME if kind == "decisions" else party
    fingerprint = loop.party("g").settings.fingerprint
    message = Message(VERSION, fingerprint, sender, 1, 0, "failed", b"", b"")
    loop.write(topic, None, msgspec.msgpack.encode(message))
    loop.settle(refused=True)
    # A guest tries again once entities have come.
    loop.write_table(2 * ROWS, 3, 1, first=ROWS)
    loop.now += 1000
    loop.settle(refused=True)
    assert [loop.party(one).progress.run for one in parties(loop)] == [2, 2]
    assert [loop.party(one).progress.phase for one in parties(loop)] == [TRAINED] * 2
    assert [member.role.trouble for member in loop.members.values()] == [None] * 3


OTHERS_DIGEST = bytes(32)


@pytest.mark.parametrize(
    ("history", "runs"), [(["ready"], 1), (["ready", "joined"], 2), (["ready", "failed"], 2)]
)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_history_of_another_federation_stops_none_for_good(
    secrets: Secrets, history: list[str], runs: int, restarted: bool
) -> None:
    """Protects a federation whose topics hold what parties of another one of that name said, or a stranger:
    the coordinator begins a training before any party is ready. It was never heard of, and all members waited
    for one another for ever, green."""
    loop = untrained(1, secrets, learning={**LEARNING, **SHORT["learning"]})
    settings = loop.party("g").settings
    said = {
        "ready": content_of(Ready(ROWS, settings.encryption.agreed_key)),
        "joined": content_of(Joined(3, 1)),
        "failed": b"",
    }
    for kind in history:
        for party in parties(loop):
            number, alignment = (0, b"") if kind == "ready" else (1, OTHERS_DIGEST)
            message = Message(VERSION, settings.fingerprint, party, number, 0, kind, alignment, said[kind])
            loop.write(f"f.{party}.uploads", None, msgspec.msgpack.encode(message))
    loop.settle()
    assert loop.members["c"].role.task(0).run.number == 1
    if restarted:
        for name in loop.members:
            loop.restart(name)
    loop.write_table(ROWS, 3, 1)
    loop.settle(refused=True)
    loop.write_table(2 * ROWS, 3, 1, first=ROWS)
    loop.now += 1000
    loop.settle(refused=True)
    assert [loop.party(one).progress.run for one in parties(loop)] == [runs] * 2
    assert [loop.party(one).progress.phase for one in parties(loop)] == [TRAINED] * 2
    assert [member.role.trouble for member in loop.members.values()] == [None] * 3


def test_parts_in_many_names_take_no_memory(secrets: Secrets) -> None:
    """Protects a member's memory without keys: parts of long messages whose other parts never come waited
    for a day, two under each name that a stranger makes up, and pushed out the members' own."""
    loop = federation(secrets, **SHORT, alignment={**ALIGNMENT, "limit": 20_000})
    for topic in ("f.g.uploads", "f.h1.uploads", "f.h1.decisions", "f.h1.outputs"):
        for name in ("stranger", "g2"):
            first, *_ = split(name, 1, 7, bytes(loop.party("g").settings.message_bytes))
            assert first[:1] == MARK
            loop.write(topic, None, first)
    loop.settle(refused=True)
    assert not any("messages in parts" in member.role.waiting for member in loop.members.values())
    assert [loop.party(one).progress.phase for one in parties(loop)] == [TRAINED] * 2


def opened_beyond(loop: ClosedLoop, name: str, beyond: int) -> None:
    """A party looks at what numbers at the bounds lead to, and a bit more."""
    rounds = loop.party(name).rounds
    kinds, matrix = rounds._settings.kinds, rounds.matrix.astype(object)
    own = rounds.own_numbers().astype(object)
    most = kinds.inner_products.largest
    if name == "g":
        own = own - 2 * np.array([round(sign * 2**24) for sign in rounds.signs], dtype=object)
    else:
        most += 2 * 2**24
    # Of every row the other tells the most that there is, with the sign of the first column.
    others = np.where(matrix[:, 0] < 0, -most, most).astype(object)
    found = (matrix.T @ (own + others)).tolist()
    found[0] += beyond
    rounds.check(found)


@pytest.mark.parametrize("name", ["g", "h1"])
def test_what_the_bounds_allow_is_taken(secrets: Secrets, name: str) -> None:
    """Protects honest members at the bounds: all that they can tell is taken, and one more is not."""
    loop = federation(secrets, **SHORT)
    loop.settle()
    opened_beyond(loop, name, 0)
    with pytest.raises(BadRecord, match="beyond what all rows"):
        opened_beyond(loop, name, 1)


def uploading(patch: pytest.MonkeyPatch, changed: Any) -> None:
    """A guest that uploads other sums. changed: of the host's ciphertexts, the key and the honest sums, the
    sums."""
    honest, outputs = GuestTask._tell_sums, GuestTask._add_outputs
    kept: dict[str, bytes] = {}

    def add_outputs(self: GuestTask) -> None:
        kept["outputs"] = self._of_round(self._outputs["h1"])
        outputs(self)

    def tell_sums(self: GuestTask, vector: bytes) -> None:
        key = PaillierPublicKey(int.from_bytes(self.progress.modulus, "big"))
        one = len(vector) // key.ciphertext_bytes
        sums = decode_ciphertexts(key, vector, one)
        host = decode_ciphertexts(key, kept["outputs"], len(self.rounds.matrix))
        honest(
            self,
            encode_ciphertexts(key, changed(host, key, sums, Packing(key, self.settings.products).width)),
        )

    patch.setattr(GuestTask, "_add_outputs", add_outputs)
    patch.setattr(GuestTask, "_tell_sums", tell_sums)


def test_nobody_is_told_a_loss(monkeypatch: pytest.MonkeyPatch, secrets: Secrets) -> None:
    """Protects the host's outputs: in the loss's place a guest could have two of them decrypted, and told to
    it with the step."""

    def changed(host: list[int], key: PaillierPublicKey, sums: list[int], width: int) -> list[int]:
        # In the second slot, where the loss is before there are pairs: u_7 + 2^30 u_8 beside it.
        carried = host[7] * pow(host[8], 1 << 30, key.n_squared) % key.n_squared
        return [sums[0] * pow(carried, 1 << width, key.n_squared) % key.n_squared, *sums[1:]]

    uploading(monkeypatch, changed)
    loop = federation(secrets, **SHORT)
    loop.settle()
    steps = [read_content(one.content, StepDecision) for one in said(loop, "f.g.decisions", "step")]
    assert len(steps) >= 2
    assert [step.loss for step in steps] == [0.0] * len(steps)


@pytest.mark.parametrize("slot", [0, 1])
def test_sums_that_no_vectors_have_end_the_training(
    monkeypatch: pytest.MonkeyPatch, secrets: Secrets, slot: int
) -> None:
    """Protects outputs and the model: a square below 0, or a loss beyond what outputs within their bounds
    have, is no sum."""

    def changed(host: list[int], key: PaillierPublicKey, sums: list[int], width: int) -> list[int]:
        beyond = PRODUCTS.encode(np.array([-(2.0**20)]))[0]
        return [sums[0] * (1 + key.n * (int(beyond) << (slot * width))) % key.n_squared, *sums[1:]]

    uploading(monkeypatch, changed)
    loop = federation(secrets, **SHORT)
    loop.settle()
    assert loop.members["c"].role.counts.implausible_openings == 1
    assert "the sums of 'g' are none" in str(loop.members["c"].role.trouble)
    assert [loop.party(one).progress.phase for one in parties(loop)] == [FAILED] * 2


def test_products_are_those_of_vectors() -> None:
    """Protects honest trainings and the coordinator: what vectors have is taken to the last bit, and what
    none have is not."""
    random = np.random.default_rng(2)
    descent = Descent(DescentSettings(batch=10))
    steps, curvatures = [], []
    for _ in range(5):
        step = random.normal(size=6) * 10.0 ** random.uniform(-4, 1)
        curvature = step * random.uniform(0.5, 2, 6)
        basis = np.array([*steps, step, *curvatures, curvature])
        offered = np.concatenate([basis @ step, basis @ curvature])
        descent.check_pair(offered, 1.0)
        with pytest.raises(BadRecord, match="no vectors"):
            descent.check_pair(offered * np.where(np.arange(len(offered)) == len(steps), -1.0, 1.0), 1.0)
        assert descent.offer(*offered.reshape(2, -1))
        steps.append(step)
        curvatures.append(curvature)
        gradient = random.normal(size=6) * 10.0 ** random.uniform(-8, 2)
        # Along one of the vectors: equality, to rounding.
        for own in (gradient, 3 * steps[0], 1e-9 * curvatures[-1], np.zeros(6)):
            products = np.array([*(np.array([*steps, *curvatures, own]) @ own), 0.5])
            descent.check_step(products, 4.0)
            worse = products.copy()
            worse[0] = 1.01 * np.sqrt(products[-2] * (steps[0] @ steps[0])) + 2e-6 * (
                1 + np.linalg.norm(steps[0])
            )
            with pytest.raises(BadRecord, match="no vectors"):
                descent.check_step(worse, 4.0)
        for total in (-0.01, 2 * (2.0 + 2.0 + 0.5) + 0.01):
            with pytest.raises(BadRecord, match="no outputs up to 4"):
                descent.check_step(np.array([*products[:-1], total]), 4.0)
