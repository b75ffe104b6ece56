"""Checks that must hold for a quasi-Newton federation under any faults. They read its topics, with all
members' secrets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from quasi_newton.proof import made_up_secrets
from quasi_newton.proof.check_scores import check_scores
from quasi_newton.proof.observed_messages import messages_of
from quasi_newton.proof.oracle import (
    Batches,
    Expected,
    batches_of,
    common_entities,
    expected,
    script,
    size_of,
)
from quasi_newton.proof.scenario import NAME, STRANGER, C, G, QuasiNewtonScenario

from streamfl.contract.role import StateChange
from streamfl.identity.keys import derive
from streamfl.quasi_newton.messages import Joined, Message, StepDecision, place_of
from streamfl.quasi_newton.training.coordinator import CoordinatorTask
from streamfl.quasi_newton.training.party import PartyTask
from streamfl.quasi_newton.training.training_progress import FAILED, TRAINED
from streamfl.roles.partitioned_role import PartitionedRole
from streamfl.runtime.kinds import find_kind
from streamfl.runtime.remembered_positions import POSITION_KEY
from streamfl.testing.faults.cluster import FaultyBus
from streamfl.testing.faults.observed_messages import latest, require

__all__ = ["check_outcome", "check_said"]

# Kinds of messages that may differ if work is done again with other entities: before a training, and about
# scores.
BEFORE_FROZEN = {"ready", "blinded", "answer"}
ABOUT_SCORES = {"question", "found", "chosen", "points"}


def check_outcome(bus: FaultyBus, chosen: QuasiNewtonScenario) -> None:
    """Check that only strangers were refused, and that weights, steps and messages are those of a training
    without faults."""
    check_said(bus, chosen)
    check_refused(bus, chosen)
    taken_up = {member: _taken_up(bus, chosen, member) for member in chosen.workers}
    parties = {party: taken_up[party] for party in chosen.parties}
    coordinator = taken_up[C]
    assert isinstance(coordinator, CoordinatorTask)
    never_begun = (
        chosen.permanent_fault is not None
        and bool(chosen.permanent_fault.places)
        and coordinator.run.number == 0
    )
    if never_begun:
        return
    common = common_entities(chosen)
    first = common & set(chosen.first)
    filled = len(batches_of(chosen, first)) > 0
    phases = {name: task.progress.phase for name, task in parties.items()}
    if FAILED in phases.values():
        # The guest knows new entities after the final restart.
        again = coordinator.run.number > 1 or chosen.permanent_fault is not None
        require(again, "it failed, and the guest did not try again when more entities came")
        check_failed(chosen, phases, taken_up, may_be_few=not filled or not chosen.settled)
        return
    require(not chosen.fails, f"it should have failed: {chosen.fails}")
    require(set(phases.values()) == {TRAINED}, f"not all are trained: {phases}")
    batches = check_batches(chosen, parties, common)
    failed = check_too_few(bus, chosen, filled=filled)
    ends = check_ends(bus, chosen, len(batches.names), batches.size, failed)
    if chosen.settled and set(batches.names[: ends[0]]) <= first:
        require(
            list(batches.names[: ends[0]]) == batches_of(chosen, first),
            "the batches are not of what all parties knew",
        )
    outcomes: list[Expected] = []
    for run, rows in enumerate(ends, start=failed + 1):
        outcomes.append(expected(chosen, run, batches.first(rows), outcomes[-1] if outcomes else None))
    for number, (party, task) in enumerate(parties.items()):
        check_party(party, task, outcomes[-1], number)
    check_coordinator(bus, chosen, coordinator, outcomes)
    check_transcript(bus, chosen, outcomes)
    if chosen.encrypted:
        check_ciphertexts(bus, chosen)
    if chosen.scores:
        check_scores(bus, chosen, outcomes, common)


def check_said(bus: FaultyBus, chosen: QuasiNewtonScenario) -> None:
    """Check that repeated work sent the same, the coordinator decrypted nothing twice, and all between
    parties is sealed."""
    for (sender, channel, run, number, kind), contents in chosen.observed.sent.items():
        what = f"{sender} said {len(contents)} things as {kind} of run {run}, round {number}, on {channel}"
        known = chosen.settled and not chosen.again
        may_differ = (kind in BEFORE_FROZEN and not known) or (kind in ABOUT_SCORES and chosen.again)
        # The message is for the training after this one, and counts entities that came later.
        may_differ = may_differ or (kind == "ready" and run > 0)
        # It carries no numbers. Its header names the common entities if a party named them before it failed.
        may_differ = may_differ or (kind == "failed" and channel.startswith("decisions/"))
        require(len(contents) == 1 or may_differ, what)
    for (run, number), contents in chosen.observed.opened.items():
        most = len(chosen.parties) + 1
        count = len(contents)
        require(
            count <= most,
            f"the coordinator opened {count} vectors in round {number} of run {run}, {most} may be",
        )
    for topic in chosen.linked:
        for message in messages_of(bus, f"{NAME}.{topic}"):
            sealed = _opened(chosen, topic, message) is not None
            require(
                sealed, f"{topic}: {message.kind} of round {message.round} is not sealed by the link's secret"
            )


def check_refused(bus: FaultyBus, chosen: QuasiNewtonScenario) -> None:
    """Check that each stranger's record was refused once, and nothing else was."""
    places = () if chosen.permanent_fault is None else chosen.permanent_fault.places
    # What was written after the partition became unreadable, nobody could refuse.
    unreadable = {topic.encode() for topic, _ in places}
    for member in chosen.workers:
        settings = chosen.of(member)
        inputs = {one.topic for one in find_kind(settings.role.kind).channels(settings).inputs.values()}
        letters = list(bus.read(settings.dead_letters))
        found = Counter((dict(letter.headers)["topic"], letter.key) for letter in letters)
        strange = [
            one
            for own in chosen.readings
            for one in own
            if one.client.startswith(STRANGER) and one.topic in inputs
        ]
        written = Counter((one.topic.encode(), one.client.encode()) for one in strange)
        for place in [place for place in written if place[0] in unreadable]:
            written[place] = min(written[place], found[place])
        first = [letter.headers for letter in letters[:1]]
        require(found == written, f"{member}: refused were {found}, strangers wrote {written}: {first}")


def check_failed(
    chosen: QuasiNewtonScenario, phases: dict[str, int], tasks: dict[str, Any], *, may_be_few: bool
) -> None:
    """Check that the training failed at every member, for a reason that the scenario has."""
    troubles = {name: str(task.trouble) for name, task in tasks.items()}
    require(set(phases.values()) == {FAILED}, f"it failed, but not everywhere: {troubles}")
    require(
        all("has ended" in text for text in troubles.values()),
        f"it failed, and not everybody says so: {troubles}",
    )
    reasons = [chosen.fails] if chosen.fails else []
    reasons += ["too few for a batch"] if may_be_few else []
    few_common(chosen)
    known = any(reason in text for reason in reasons for text in troubles.values())
    require(known, f"it failed: {troubles}")


def check_batches(chosen: QuasiNewtonScenario, parties: Mapping[str, PartyTask], common: set[str]) -> Batches:
    """Check that all parties have the same entities in the same order, none held out, each with columns and a
    label it once had."""
    names = {name: list(task.learnt) for name, task in parties.items()}
    order = names[G]
    require(
        all(own == order for own in names.values()), "parties learnt from other entities, or in another order"
    )
    require(len(set(order)) == len(order), "an entity was counted twice")
    require(set(order) <= common, f"learnt from, but not common: {sorted(set(order) - common)[:3]}")
    held_out = [name for name in order if chosen.is_held_out(name)]
    require(not held_out, f"held out, and learnt from: {held_out[:3]}")
    raw = {party: task.rows.batches.raw for party, task in parties.items()}
    for party, rows in raw.items():
        others = [
            name
            for name, row in zip(order, rows.tolist(), strict=True)
            if row not in chosen.known[party, name]
        ]
        require(not others, f"{party} learnt from columns that nobody wrote: {others[:3]}")
    signs = parties[G].rows.batches.signs
    # The first training fixed the size, from the entities that were there then.
    size = parties[G].rows.batches.size
    sizes = {size, *(task.rows.batches.size for task in parties.values())}
    allowed = {chosen.guest.learning.batch, size_of(chosen, size)}
    require(len(sizes) == 1 and size in allowed, f"batches of {sizes} rows: one of {allowed} is expected")
    wrong = [
        name for name, sign in zip(order, signs, strict=True) if (1 + sign) / 2 not in chosen.labels[name]
    ]
    require(not wrong, f"learnt from labels that nobody wrote: {wrong[:3]}")
    return Batches(order, raw, signs, size)


def check_too_few(bus: FaultyBus, chosen: QuasiNewtonScenario, *, filled: bool) -> int:
    """Returns how many trainings failed before one succeeded. Checks that too few entities were common each
    time, and that this could be.

    Parties that do not wait for all entities may begin with too few common ones. The guest then tries again
    with the entities that have come since. filled: whether the entities of the first wave fill a batch.
    """
    uploads = messages_of(bus, f"{NAME}.{G}.uploads", bus.repeated)
    runs = [one.run for one in uploads if one.kind == "failed"]
    require(runs == list(range(1, len(runs) + 1)), f"trainings {runs} failed before one succeeded")
    if chosen.settled:
        text = "the entities of the first wave fill a batch" if filled else "the first wave fills no batch"
        require(bool(runs) != filled, f"{text}, and {len(runs)} trainings failed")
    others = sorted(set(runs) - few_common(chosen).keys())
    require(not others, f"trainings {others} failed, but not because too few entities were common")
    return len(runs)


def few_common(chosen: QuasiNewtonScenario) -> dict[int, int]:
    """By training for which the guest reported too few common entities: how many there were, the most if it
    did the work again. Checks that they were too few."""
    said = re.compile(r"training (\d+) has ended: (\d+) common entities are too few for a batch")
    found = [match for match in map(said.match, sorted(chosen.observed.troubles)) if match is not None]
    counts: dict[int, int] = {}
    for match in found:
        run, count = int(match[1]), int(match[2])
        least = chosen.least_batch
        require(count < least, f"{count} common entities were too few in training {run}, {least} are enough")
        counts[run] = max(count, counts.get(run, 0))
    return counts


def check_ends(bus: FaultyBus, chosen: QuasiNewtonScenario, rows: int, size: int, failed: int) -> list[int]:
    """Returns how many rows each training learnt from. Checks that all parties agree, and that the number
    never falls. failed: how many trainings failed before."""
    said = []
    for party in chosen.parties:
        joined = [
            one for one in messages_of(bus, f"{NAME}.{party}.uploads", bus.repeated) if one.kind == "joined"
        ]
        runs = [one.run for one in joined]
        first = failed + 1
        require(
            runs == list(range(first, first + len(runs))),
            f"{party} joined trainings {runs}, and {failed} failed before",
        )
        said.append([size * msgspec.msgpack.decode(one.content, type=Joined).batches for one in joined])
    ends = said[0]
    require(all(own == ends for own in said), f"parties joined trainings of so many rows: {said}")
    require(
        ends == sorted(ends) and ends[-1:] == [rows],
        f"trainings learnt from {ends} rows, and there are {rows}",
    )
    require(len(ends) == 1 or chosen.again, f"there were {len(ends)} trainings")
    return ends


def check_party(party: str, task: PartyTask, outcome: Expected, number: int) -> None:
    """Check weights, model and pairs to the last bit."""
    trace, memory = outcome.trace, task.settings.learning.memory
    task.rounds.go_on()
    own = task.iterates.own
    apart = np.abs(own.weights - trace.weights[number][-1])
    require(not apart.any(), f"{party}: weights are {apart.max():g} from those of the arithmetic alone")
    model = task.iterates.model
    require(
        model is not None and np.array_equal(model, trace.model[number]),
        f"{party}: the model is not the last epoch's mean",
    )
    kept = [at for at, (_, was_kept) in enumerate(trace.pairs) if was_kept][-memory:]
    pairs = np.array([[trace.steps[number][at], trace.curvatures[number][at]] for at in kept])
    same = len(own.pairs) == len(kept) and (not kept or np.array_equal(own.pairs, pairs))
    require(same, f"{party}: {len(own.pairs)} pairs are kept, or others than the {len(kept)} that there were")


def check_coordinator(
    bus: FaultyBus, chosen: QuasiNewtonScenario, task: CoordinatorTask, outcomes: Sequence[Expected]
) -> None:
    """Check that every published step is that of the arithmetic, and that the last loss is stored."""
    told = messages_of(bus, f"{NAME}.{chosen.parties[0]}.decisions", bus.repeated)
    for outcome in outcomes:
        run, trace = outcome.run, outcome.trace
        steps = [
            msgspec.msgpack.decode(one.content, type=StepDecision)
            for one in told
            if one.kind == "step" and one.run == run and one.round % 2 == 0
        ]
        text = f"training {run}: {len(steps)} steps were told, not {len(trace.batch_losses)}, or a loss was"
        require(len(steps) == len(trace.batch_losses) and not any(step.loss for step in steps), text)
        wrong = [
            at
            for at, (step, coefficients) in enumerate(zip(steps, trace.coefficients, strict=True))
            if not (
                step.coefficients == b""
                or np.array_equal(np.frombuffer(step.coefficients, "<f8"), coefficients)
            )
        ]
        require(not wrong, f"training {run}: coefficients of iterations {wrong[:3]} are others")
    trace = outcomes[-1].trace
    last_loss = task.descent.state.last_loss
    require(last_loss == trace.losses[-1], f"the last epoch's loss is {last_loss}, not {trace.losses[-1]}")
    epochs = task.descent.epochs
    require(epochs == trace.epochs, f"{epochs} epochs were counted, {trace.epochs} there were")


def check_transcript(bus: FaultyBus, chosen: QuasiNewtonScenario, outcomes: Sequence[Expected]) -> None:
    """Check that every topic holds its expected messages, in order, each once."""
    topics = [*(f"{party}.{kind}" for party in chosen.parties for kind in ("uploads", "decisions"))]
    topics += [topic for topic in chosen.linked if topic.endswith((".outputs", ".residuals"))]
    for topic in topics:
        found = [(one.kind, one.run, one.round) for one in messages_of(bus, f"{NAME}.{topic}", bus.repeated)]
        written = script(outcomes, topic)
        pairs = enumerate(zip(found, written, strict=False))
        first = next((at for at, (one, other) in pairs if one != other), min(len(found), len(written)))
        require(
            found == written,
            f"{topic}: message {first} is {found[first : first + 1]}, not {written[first : first + 1]}",
        )


def check_ciphertexts(bus: FaultyBus, chosen: QuasiNewtonScenario) -> None:
    """Check that the coordinator cannot read a masked gradient, and no host a residual by dividing out its
    own ciphertext."""
    key, public = made_up_secrets.key(), made_up_secrets.key().public
    modulus, square = int(public.n), int(public.n) ** 2

    def ciphertexts(content: bytes) -> list[int]:
        size = public.ciphertext_bytes
        return [int.from_bytes(content[at : at + size], "big") for at in range(0, len(content), size)]

    for party in chosen.parties if chosen.masked else ():
        for message in messages_of(bus, f"{NAME}.{party}.uploads"):
            numbers = (
                [int(number) for number in key.decrypt(ciphertexts(message.content))]
                if message.kind == "gradient"
                else []
            )
            # Only one in 2^64 masks is this short.
            short = any(min(number, modulus - number).bit_length() < public.bits - 64 for number in numbers)
            require(not short, f"the coordinator can read what {party} uploaded in round {message.round}")
    hidden: dict[tuple[int, int], list[int]] = {}
    for host in chosen.hosts:
        for message in messages_of(bus, f"{NAME}.{host}.outputs", bus.repeated):
            if message.kind == "outputs":
                own = ciphertexts(_opened(chosen, f"{host}.outputs", message) or b"")
                place = message.run, message.round
                before = hidden.get(place, [1] * len(own))
                hidden[place] = [one * other % square for one, other in zip(own, before, strict=True)]
    for message in messages_of(bus, f"{NAME}.{chosen.hosts[0]}.residuals", bus.repeated):
        if message.kind == "residuals":
            found = ciphertexts(_opened(chosen, f"{chosen.hosts[0]}.residuals", message) or b"")
            # Without a second blinding the quotient is (1 + n)^m. m is the guest's part, whose sign reveals
            # the label.
            pairs = zip(found, hidden[message.run, message.round], strict=True)
            told = any((one * pow(other, -1, square) - 1) % modulus == 0 for one, other in pairs)
            require(not told, f"residuals of round {message.round} tell hosts the guest's numbers")


def _opened(chosen: QuasiNewtonScenario, topic: str, message: Message) -> bytes | None:
    """Opens an envelope by RFC 5297 with the link's secret, topic and header. None if it cannot be opened."""
    host = topic.partition(".")[0]
    secret = made_up_secrets.secret(made_up_secrets.path("link", host))
    cipher = AESSIV(derive(secret, b"quasi-newton link tag") + derive(secret, b"quasi-newton link cipher"))
    header = place_of(msgspec.structs.replace(message, content=b""))
    try:
        return cipher.decrypt(message.content, [NAME.encode(), f"{NAME}.{topic}".encode(), header])
    except (InvalidTag, ValueError):
        return None


def _taken_up(bus: FaultyBus, chosen: QuasiNewtonScenario, member: str) -> Any:
    """A member's partition, restored from its changelog as in a new process."""
    settings = chosen.of(member)
    kind = find_kind(settings.role.kind)
    role = kind.build(settings)
    assert isinstance(role, PartitionedRole)
    role.open(0)
    for (partition, key), value in latest(bus, kind.channels(settings).changelogs["state"]).items():
        if not key.startswith(POSITION_KEY):
            role.restore(StateChange("state", partition, key, value))
    return role.task(0)
