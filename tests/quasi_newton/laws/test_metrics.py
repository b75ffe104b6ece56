"""What operators see of a training: ciphertexts and bytes by role and iteration, where it is, and that the
loop never encrypts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from quasi_newton.federations import Secrets, settings_of
from quasi_newton.laws.closed_loop import ClosedLoop

from streamfl.contract.role import Work
from streamfl.quasi_newton.encryption import bignum
from streamfl.quasi_newton.encryption.scheme import scheme_of
from streamfl.quasi_newton.members.traffic import TrafficCounter
from streamfl.quasi_newton.messages import Message

MEMBERS = ("g", "h1", "c")
COLUMNS = {"g": 4, "h1": 3}
# 512 bits: as many numbers of 84 bits as fit, so that uploads are more than one ciphertext.
BITS = 512
SMALL: dict[str, Any] = {
    "learning": {
        "batch": 80,
        "min_batch": 80,
        "min_support": 2,
        "epochs": 3,
        "memory": 2,
        "curvature_every": 2,
    },
    "alignment": {"entities": 80},
}


@pytest.fixture(name="loop")
def _loop(tmp_path: Path) -> ClosedLoop:
    secrets = Secrets(tmp_path)
    loop = ClosedLoop({name: settings_of(name, 1, secrets, BITS, **SMALL) for name in MEMBERS})
    loop.write_table(190, 3, 1)
    return loop


def turns(loop: ClosedLoop) -> Iterator[str]:
    """Whoever has taken a message; until nothing moves."""
    idle = 0
    while idle < 20:
        moved = [
            name
            for name, member in loop.members.items()
            if loop.step(name, 1000 if member.unread and users(member) else 1)
        ]
        yield from moved
        idle = 0 if moved else idle + 1
        loop.now += 0.001 if moved else 1.0


def users(member: Any) -> bool:
    return bool(member.unread[0][0].endswith(("samples", "labels")))


def formulas(loop: ClosedLoop, name: str) -> list[int]:
    """Ciphertexts of each iteration, from the specification: |S|, |S_H| with a pair, and ceil(columns /
    slots) for each upload."""
    trace, settings = loop.direct(), loop.party("g").settings
    size, memory, kinds = settings.learning.batch, settings.learning.memory, settings.kinds

    def units(numbers: int, slot_bits: int) -> int:
        return -(-numbers // ((BITS - 2) // slot_bits))

    offers, kept, found = dict(trace.pairs), 0, []
    for iteration in range(1, len(trace.visited) + 1):
        # The guest's labels are one more column of its gradient. Inner products are with g, and with s and v
        # of each pair.
        own = size + units(COLUMNS[name] + (name == "g"), kinds.gradients.slot_bits)
        own += units(2 * kept + 2, settings.products.slot_bits)
        if iteration in offers:
            own += (
                size
                + units(COLUMNS[name], kinds.curvature.slot_bits)
                + units(4 * kept + 4, settings.products.slot_bits)
            )
            kept = min(kept + offers[iteration], memory)
        found.append(own)
    return found


def traffic(task: Any) -> TrafficCounter:
    found: TrafficCounter = (task.exchange if hasattr(task, "exchange") else task).traffic
    return found


def test_each_iteration_costs_what_the_formulas_say(loop: ClosedLoop) -> None:
    """Protects the operator's bill: the figures of an iteration are those of the specification, and bytes are
    those on the wire."""
    seen: dict[str, dict[int, tuple[float, float]]] = {name: {} for name in MEMBERS}
    for name in turns(loop):
        own, place = loop.figures(name), traffic(loop.members[name].role.task(0)).place
        if "iteration_ciphertexts" in own:
            # What was said last is of the next iteration.
            seen[name].setdefault(place[1] - 1, (own["iteration_ciphertexts"], own["iteration_bytes"]))
    assert loop.rejections() == []
    written: dict[str, Counter[int]] = {name: Counter() for name in MEMBERS}
    for name, topic, value in loop.writes:
        if name in MEMBERS and not topic.endswith(("samples", "labels")):
            message = loop.party("g").given.codec.decode(value)
            assert isinstance(message, Message)
            if message.kind in ("outputs", "residuals", "gradient", "dots", "sums", "opened", "step"):
                written[name][message.round // 2] += len(value)
    iterations = len(loop.direct().visited)
    assert iterations == 6
    assert any(kept for _, kept in loop.direct().pairs)
    for name in MEMBERS:
        # Nobody has said anything after the last one, so it is not known to be whole.
        assert {number: size for number, (_, size) in seen[name].items()} == {
            number: written[name][number] for number in range(iterations - 1)
        }
    for name in COLUMNS:
        assert [count for _, (count, _) in sorted(seen[name].items())] == formulas(loop, name)[:-1]
        assert loop.figures(name)["ciphertexts_sent"] == sum(formulas(loop, name))
        # A ciphertext has twice the key's length; all else of a message is short.
        rest = [size - count * BITS // 4 for count, size in seen[name].values()]
        assert 0 < min(rest) <= max(rest) < 1000
    assert {count for count, _ in seen["c"].values()} == {0}


def test_where_a_training_is_can_be_seen_and_survives_a_restart(loop: ClosedLoop) -> None:
    """Protects a board from a figure that a restart of any member would change: loss, epoch, iteration and
    phase are remembered."""
    assert loop.figures("c")["loss"] != loop.figures("c")["loss"]
    losses = []
    for _ in turns(loop):
        now = loop.figures("c")
        if now["epoch"] > len(losses):
            losses.append(now["loss"])
        for name in MEMBERS:
            before = loop.figures(name)
            if before["iteration"] == 3:
                loop.restart(name)
                after = loop.figures(name)
                places = (
                    "training",
                    "phase",
                    "iteration",
                    *(("epoch", "loss", "pairs") if name == "c" else ()),
                )
                assert [after[place] == before[place] for place in places] == [True] * len(places)
    assert losses == loop.direct().losses
    assert loop.figures("c")["epoch"] == 3
    assert {name: (loop.figures(name)["training"], loop.figures(name)["phase"]) for name in MEMBERS} == {
        "g": (1, 7), "h1": (1, 7), "c": (1, 3)
    }  # fmt: skip


def test_the_loop_raises_no_power(loop: ClosedLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects heartbeats and metrics: all that encrypts, multiplies or decrypts is asked for as work, beside
    the loop."""
    inside: list[Work] = []
    powers: Counter[str] = Counter()
    plain = bignum.gmpy2

    def power(name: str) -> Any:
        def raised(*numbers: int) -> Any:
            assert inside, "a power was raised in the loop"
            powers[inside[-1].function.__name__] += 1
            return getattr(plain, name)(*numbers)

        return raised

    watched = SimpleNamespace(
        **{name: getattr(plain, name) for name in dir(plain) if not name.startswith("_")}
    )
    watched.powmod, watched.powmod_sec = power("powmod"), power("powmod_sec")
    monkeypatch.setattr(bignum, "gmpy2", watched)

    def watch(member: Any) -> None:
        receive = member.role.receive

        def received(batch: Any, now: float) -> Any:
            return [
                Work(one.channel, one.partition, one.key, beside(one), one.content)
                if isinstance(one, Work)
                else one
                for one in receive(batch, now)
            ]

        member.role.receive = received

    def beside(work: Work) -> Any:
        def computed(content: bytes) -> bytes:
            inside.append(work)
            try:
                return work.function(content)
            finally:
                inside.pop()
                # In earnest it is another process, and what it has made is not here.
                scheme_of.cache_clear()

        return computed

    for member in loop.members.values():
        watch(member)
    loop.settle()
    assert loop.party("g").progress.round == 2 * 5 + 1
    assert {"multiplied", "opened"} <= powers.keys()
