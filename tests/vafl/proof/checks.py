"""Checks that must hold for every run of a VAFL federation, made from its topics alone."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from vafl.proof.scenario import CLOCK, FOR_EVER, LABELS, ROUNDING, VaflScenario, decode_prediction

from streamfl.learning.optimisers import optimiser_named
from streamfl.testing.faults.observed_messages import Sent, TopicReader, latest, require, sent
from streamfl.vafl.config import COORDINATOR, STALE_STEPS
from streamfl.vafl.coordinator.remembered_entity import RememberedEntity
from streamfl.vafl.functions.models import embedding_function
from streamfl.vafl.messages import EMBEDDING, REPLY
from streamfl.vafl.party.in_flight_embeddings import InFlightEmbedding

__all__ = ["check_alike", "check_outcome"]


def check_outcome(bus: TopicReader, chosen: VaflScenario) -> None:
    """Check counts, order and answers, and replay every party's model from its gradients."""
    name = chosen.settings.federation.name
    for member in chosen.members:
        letters = list(bus.read(chosen.of(member).dead_letters))
        require(
            not letters,
            f"{member}: {len(letters)} records were refused: {[letter.headers for letter in letters[:1]]}",
        )
    check_predictions(bus, chosen)
    parties = chosen.settings.federation.parties
    shown = {party: sent(bus, f"{name}.{party}.embeddings", EMBEDDING.decode) for party in parties}
    told = {party: sent(bus, f"{name}.{party}.gradients", REPLY.decode) for party in parties}
    for party in parties:
        check_counts(chosen, party, shown[party], told)
        if chosen.once:
            check_staleness(bus, chosen, party, shown[party], told[party])
            check_requests(chosen, party, told[party])
            if party != chosen.absent:
                check_model(bus, chosen, party, shown[party], told[party])
    if chosen.once:
        check_quorum(bus, chosen, shown, told)
        check_coordinator(bus, chosen, shown, told)
    if chosen.once and chosen.settings.head.kind == "sum":
        check_sums(bus, chosen)


def check_predictions(bus: TopicReader, chosen: VaflScenario) -> None:
    """Exactly the entities that met their quorum have predictions, in order, each from more parties than the
    one before.

    An entity that was forgotten begins anew, and may get no prediction.
    """
    quorum = chosen.settings.alignment.quorum
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for record in bus.read(f"{chosen.settings.federation.name}.predictions"):
        prediction = decode_prediction(record)
        found[prediction["entity"]].append((prediction["revision"], prediction["embeddings"]))
    expected = chosen._to_be_predicted()
    as_expected = found.keys() <= chosen.predictable and (chosen.forgets or expected <= found.keys())
    require(as_expected, f"predicted were {sorted(found)}, not {sorted(expected)}")
    for entity, revisions in found.items():
        if chosen.once:
            begins = [place for place, (number, _) in enumerate(revisions) if number == 0]
            require(chosen.forgets or len(begins) == 1, f"{entity}: revisions {revisions}")
            for begin, end in pairwise([*begins, len(revisions)]):
                life = revisions[begin:end]
                in_order = [number for number, _ in life] == list(range(len(life)))
                require(in_order, f"{entity}: revisions {revisions}")
                require(
                    life[0][1] == quorum,
                    f"{entity}: first predicted of {life[0][1]} embeddings, {quorum} are a quorum",
                )
                grows = all(more > less for (_, less), (_, more) in pairwise(life))
                require(grows, f"{entity}: {life} are not of more and more embeddings")
            require(begins[:1] == [0], f"{entity}: revisions {revisions}")
        most = max(embeddings for _, embeddings in revisions)
        sent = len(chosen.seen[entity])
        require(most <= sent, f"{entity}: predicted of {most} embeddings, {sent} were sent")


def check_counts(
    chosen: VaflScenario, party: str, embeddings: list[Sent], told: Mapping[str, list[Sent]]
) -> None:
    """Each entity is sent once and again for every request, and is answered with at most one gradient.

    A party that has forgotten an entity does not send it again.
    """
    replies = told[party]
    asked = Counter(reply.entity for _, _, reply in replies if not reply.gradient)
    answered = Counter(reply.entity for _, _, reply in replies if reply.gradient)
    shown = Counter(embedding.entity for _, _, embedding in embeddings)
    seen = {entity for entity, parties in chosen.seen.items() if party in parties}
    as_seen = shown.keys() <= seen if party == chosen.absent else shown.keys() == seen
    require(as_seen, f"{party} showed {sorted(shown)}, saw {sorted(seen)}")
    if not chosen.once:
        return
    sequences: dict[int, list[int]] = defaultdict(list)
    for partition, _, embedding in embeddings:
        sequences[partition].append(embedding.sequence)
    for partition, numbers in sequences.items():
        require(
            numbers == list(range(1, len(numbers) + 1)),
            f"{party}, partition {partition}: sequence numbers {numbers}",
        )
    for entity, count in shown.items():
        incomplete = chosen.forgets or party == chosen.absent
        expected = 1 + min(asked[entity], chosen.settings.alignment.requests)
        as_asked = count <= expected if incomplete else count == expected
        require(as_asked, f"{party}: {entity} shown {count} times, asked for {asked[entity]} times")
        require(answered[entity] <= 1, f"{party}: {entity} answered {answered[entity]} times")
    due = {entity for who, entity in chosen._to_be_answered(told) if who == party}
    require(
        chosen.forgets or due <= answered.keys(),
        f"{party}: never answered: {sorted(due - answered.keys())[:3]}",
    )
    require(answered.keys() <= chosen.labels.keys(), f"{party}: answered without a label: {sorted(answered)}")


def check_staleness(
    bus: TopicReader, chosen: VaflScenario, party: str, embeddings: list[Sent], replies: list[Sent]
) -> None:
    """No gradient answers an embedding that is known to be too old, and a newer embedding is requested only
    for one that is. Without a bound it is requested after a wait in vain.

    A reply to a newer embedding shows that the coordinator knew it: replies are in the order in which they
    were decided."""
    bound, in_vain = chosen.settings.learning.max_staleness, _first_in_vain(bus, chosen)
    versions = {(place, one.epoch, one.sequence): one.parameters_version for place, _, one in embeddings}
    newest: dict[int, tuple[int, int]] = {}
    written = _newest_by_time(embeddings)
    for partition, at, reply in replies:
        made = reply.epoch, versions[partition, reply.epoch, reply.sequence]
        known = newest[partition] = max(made, newest.get(partition, made))
        what = f"{party}: {reply.entity}, shown as {reply.sequence}, of version {made[1]}"
        if not reply.gradient:
            times, newest_then = written.get(partition, ([], []))
            count = bisect_right(times, at)
            oldest = STALE_STEPS if bound is None else bound
            asked = count > 0 and _too_old(made, newest_then[count - 1], oldest)
            require(asked, f"{what}, is asked for anew without a reason")
            require(
                bound is not None or at + CLOCK >= in_vain,
                f"{what}, is asked for anew before anything was waited for in vain",
            )
        elif bound is not None:
            require(
                not _too_old(made, known, bound), f"{what}, has a gradient after one of version {known[1]}"
            )


def _newest_by_time(embeddings: list[Sent]) -> dict[int, tuple[list[float], list[tuple[int, int]]]]:
    """By partition: times in order, and at each the newest epoch and version written until then."""
    found: dict[int, tuple[list[float], list[tuple[int, int]]]] = {}
    for place, at, one in sorted(embeddings, key=lambda one: one.at):
        times, newest = found.setdefault(place, ([], []))
        times.append(at)
        newest.append(max([(one.epoch, one.parameters_version), *newest[-1:]]))
    return found


def _too_old(made: tuple[int, int], known: tuple[int, int], bound: int) -> bool:
    """made, known: epoch and version of an embedding, and of the newest."""
    return made[0] != known[0] or known[1] - made[1] > bound


def _first_in_vain(bus: TopicReader, chosen: VaflScenario) -> float:
    """When the coordinator may have waited once in vain."""
    first_label = min((record.timestamp for record in bus.read(LABELS)), default=0.0)
    return first_label + chosen.settings.alignment.reply_seconds


def check_requests(chosen: VaflScenario, party: str, replies: list[Sent]) -> None:
    """A party gets at most ``requests`` requests for an entity, and one more, on which it forgets the entity.

    Not checked where the coordinator may give up a party or forget the entity: then it counts anew.
    """
    alignment = chosen.settings.alignment
    if alignment.reply_seconds < FOR_EVER or chosen.forgets:
        return
    for entity, count in Counter(reply.entity for _, _, reply in replies if not reply.gradient).items():
        require(
            count <= alignment.requests + 1,
            f"{party}: asked for {entity} {count} times, {alignment.requests} may be",
        )


def check_quorum(
    bus: TopicReader,
    chosen: VaflScenario,
    embeddings: Mapping[str, list[Sent]],
    replies: Mapping[str, list[Sent]],
) -> None:
    """No entity is learnt from before a quorum of parties has sent it, until the coordinator may have waited
    once in vain."""
    learning, parties = chosen.settings.learning, chosen.settings.federation.parties
    needed = learning.quorum or len(parties)
    in_vain = _first_in_vain(bus, chosen)
    first: dict[str, float] = {}
    for _, at, reply in (one for party in parties for one in replies[party]):
        if reply.gradient:
            first[reply.entity] = min(at, first.get(reply.entity, at))
    shown: dict[str, set[str]] = defaultdict(set)
    for party in parties:
        for _, when, one in embeddings[party]:
            if when <= first.get(one.entity, -math.inf):
                shown[one.entity].add(party)
    for entity, at in first.items():
        enough = len(shown[entity]) >= needed or at + CLOCK >= in_vain
        require(
            enough, f"{entity} is learnt from when {len(shown[entity])} have shown it, {needed} are a quorum"
        )


def check_coordinator(
    bus: TopicReader,
    chosen: VaflScenario,
    embeddings: Mapping[str, list[Sent]],
    replies: Mapping[str, list[Sent]],
) -> None:
    """The coordinator remembers no entity that is ready to be learnt from. It forgets an entity, or gives up
    a party, no earlier than allowed. A party without an answer, though all parties were there, belongs to a
    forgotten entity.
    """
    settings, alignment = chosen.settings, chosen.settings.alignment
    parties = settings.federation.parties
    shown = {
        (party, place, one.epoch, one.sequence): at
        for party in parties
        for place, at, one in embeddings[party]
    }
    told = {(party, one.entity): at for party in parties for _, at, one in replies[party] if one.gradient}
    asked = {
        (party, place, one.epoch, one.sequence)
        for party in parties
        for place, _, one in replies[party]
        if not one.gradient
    }
    let_go = {(party, entity) for party in parties for entity in chosen.let_go(replies[party])}
    held: dict[tuple[int, str], RememberedEntity] = {}
    forgotten: set[str] = set()
    for record in bus.read(f"{settings.federation.name}.{COORDINATOR}.state"):
        kind, _, key = (record.key or b"").partition(b"/")
        if kind != b"entity":
            continue
        name, now = key.decode(), record.timestamp + CLOCK
        before = held.pop((record.partition, name), None)

        def untold(entity: RememberedEntity, name: str = name, now: float = now) -> list[str]:
            """Parties that wait for a gradient and had none at that time."""
            waiting = [parties[number] for number, one in entity.held.items() if one.unanswered]
            return [party for party in waiting if told.get((party, name), now + 1) > now]

        if record.value is None:
            if before is None or (before.held and not {(party, name) for party in untold(before)} - let_go):
                continue
            forgotten.add(name)
            for number, one in before.held.items():
                came = shown[parties[number], record.partition, one.epoch, one.sequence]
                require(
                    came + alignment.expiry_seconds <= now,
                    f"{name} is forgotten {now - came:.3f} s after {parties[number]}",
                )
            continue
        entity = held[record.partition, name] = msgspec.msgpack.decode(record.value, type=RememberedEntity)
        if entity.label is not None and entity.awaited_at is None:
            waiting = untold(entity)
            require(
                len(waiting) < settings.learning.wait_for,
                f"{name}: {waiting} wait for a gradient, and for nobody",
            )
        if before is None:
            continue
        for number, one in before.held.items():
            after, party = entity.held[number], parties[number]
            if (
                after.unanswered
                or party not in untold(before)
                or (after.epoch, after.sequence) != (one.epoch, one.sequence)
            ):
                continue
            forgotten.add(name)
            who = f"{name}: {party} is given up"
            require(
                (party, record.partition, one.epoch, one.sequence) in asked,
                f"{who} and was asked for nothing",
            )
            if before.awaited_at is not None and (party, name) not in let_go:
                waited = now - before.awaited_at
                require(waited >= alignment.reply_seconds, f"{who} {waited:.3f} s after the request")
    lost = {
        entity for party, entity in chosen._to_be_answered(replies) if (party, entity) not in told
    } - forgotten
    require(not lost, f"neither answered nor forgotten: {sorted(lost)[:3]}")


def check_model(
    bus: TopicReader, chosen: VaflScenario, party: str, embeddings: list[Sent], replies: list[Sent]
) -> None:
    """A party's parameters follow from its features and its gradients in order, and each embedding from the
    version it names.

    Not checked with batch_size left out: a step then depends on how many entities were under way, which no
    topic shows."""
    settings = chosen.settings
    if settings.learning.batch_size is None:
        return
    function, learning = embedding_function(settings, 2), settings.learning
    features = _shown(bus, chosen, party)
    state = latest(bus, f"{settings.federation.name}.{party}.state")
    forgotten, unclear = _forgotten(bus, chosen, party, replies) if chosen.forgets else (set(), set())
    for partition in set(range(chosen.partitions)) - unclear:
        parameters = function.initial(settings.federation.seed, party)
        optimiser = optimiser_named(
            settings.optimiser, settings.party_rate(settings.standardise), function.size
        )
        versions = [parameters.copy()]
        gathered: list[tuple[str, NDArray[Any]]] = []
        for place, _, reply in replies:
            if place != partition or not reply.gradient or (place, reply.sequence) in forgotten:
                continue
            gathered.append((reply.entity, np.frombuffer(reply.gradient)))
            if len(gathered) == learning.batch_size:
                total = np.zeros(function.size)
                for entity, gradient in gathered:
                    done = function.forward(parameters, features[entity])
                    total += function.backward(parameters, done, gradient[np.newaxis])
                step = total / len(gathered) + learning.regularisation * parameters
                optimiser.step(parameters, step, len(versions))
                versions.append(parameters.copy())
                gathered = []
        for place, _, embedding in embeddings:
            if place != partition:
                continue
            require(
                embedding.parameters_version < len(versions),
                f"{party}: {embedding.entity} is of version {embedding.parameters_version}, "
                f"{len(versions) - 1} steps were taken",
            )
            made = function.forward(
                versions[embedding.parameters_version], features[embedding.entity]
            ).outputs[0]
            apart = float(np.abs(made - np.frombuffer(embedding.values)).max())
            text = (
                f"{party}: {embedding.entity} is {apart:g} from what version {embedding.parameters_version} "
                "makes"
            )
            require(apart <= ROUNDING, text)
        remembered = state.get((partition, b"array/parameters/0"))
        if remembered is not None or len(versions) > 1:
            apart = (
                float(np.abs(np.frombuffer(remembered or b"") - parameters).max())
                if remembered
                else float("inf")
            )
            require(
                apart <= ROUNDING,
                f"{party}, partition {partition}: the model is {apart:g} from what its gradients make",
            )


def _shown(bus: TopicReader, chosen: VaflScenario, party: str) -> dict[str, NDArray[np.float64]]:
    """By entity, the model's inputs, (1, inputs): each input standardised by those of its partition so far.

    In the order of the topic, whichever processes were killed meanwhile. In the moments an input counts as no
    farther from the mean than the root of the earlier summed squares, or 8 deviations, and more where few
    inputs came.
    """
    found: dict[str, NDArray[np.float64]] = {}
    state = latest(bus, f"{chosen.settings.federation.name}.{party}.state")
    earlier: dict[int, NDArray[np.float64]] = {}
    for record in bus.read(f"samples-{party}"):
        value = record.value or b""
        content = (msgspec.json if value.startswith(b"{") else msgspec.msgpack).decode(value)
        inputs = np.array(content["x"], np.float64)
        # A partition that an earlier release began is not standardised.
        if (record.partition, b"array/moments/0") in state:
            # One array: a soak has tens of thousands of samples.
            before = earlier.get(record.partition, np.empty((0, len(inputs))))
            near = inputs
            if len(before) >= 5:
                squares = np.square(before - np.mean(before, axis=0)).sum(axis=0)
                deviations = max(1.0, 8.0 * (1.0 + 16.0 / len(before)) / np.sqrt(len(before)))
                within = np.where(squares > 0, np.sqrt(squares) * deviations, np.inf)
                near = np.clip(inputs, np.mean(before, axis=0) - within, np.mean(before, axis=0) + within)
            before = earlier[record.partition] = np.vstack([before, near])
            mean, deviation = np.mean(before, axis=0), np.std(before, axis=0)
            varying = deviation > 0
            scaled = np.clip((inputs - mean) / np.where(varying, deviation, 1.0), -3.0, 3.0)
            inputs = np.where(varying, scaled, 0.0) / np.sqrt(max(1, varying.sum()))
        found[(record.key or b"").decode()] = inputs[np.newaxis]
    return found


def _forgotten(
    bus: TopicReader, chosen: VaflScenario, party: str, replies: list[Sent]
) -> tuple[set[tuple[int, int]], set[int]]:
    """Partition and sequence number of the embeddings that the party had forgotten when their gradient came,
    and the partitions where this is unclear: the gradient was there when the entity expired.
    """
    told = {(place, one.sequence): at for place, at, one in replies if one.gradient}
    let_go = {b"entity/" + entity.encode() for entity in chosen.let_go(replies)}
    shown: dict[tuple[int, bytes], InFlightEmbedding] = {}
    forgotten: set[tuple[int, int]] = set()
    unclear: set[int] = set()
    for record in bus.read(f"{chosen.settings.federation.name}.{party}.state"):
        key = record.key or b""
        if not key.startswith(b"entity/"):
            continue
        place, now = (record.partition, key), record.timestamp + CLOCK
        if record.value is not None:
            shown[place] = msgspec.msgpack.decode(record.value, type=InFlightEmbedding)
        elif (one := shown.pop(place, None)) is not None:
            came = told.get((record.partition, one.sequence))
            due = one.since + chosen.settings.alignment.expiry_seconds <= now
            text = f"{party}: {key!r} is forgotten {now - one.since:.3f} s after it came"
            require(due or key in let_go or (came is not None and came <= now), text)
            if came is not None and came > now:
                forgotten.add((record.partition, one.sequence))
            elif came is not None and due:
                unclear.add(record.partition)
    return forgotten, unclear


def check_sums(bus: TopicReader, chosen: VaflScenario) -> None:
    """With a sum as head, all parties get the same gradient of an entity. Checked where all parties are
    answered together."""
    if chosen.settings.learning.wait_for != len(chosen.settings.federation.parties):
        return
    gradients: dict[str, set[bytes]] = defaultdict(set)
    for party in chosen.settings.federation.parties:
        for _, _, reply in sent(bus, f"{chosen.settings.federation.name}.{party}.gradients", REPLY.decode):
            if reply.gradient:
                gradients[reply.entity].add(reply.gradient)
    for entity, values in gradients.items():
        require(len(values) == 1, f"{entity}: parties got {len(values)} different gradients of one sum")


def check_alike(bus: TopicReader, calm: TopicReader, chosen: VaflScenario) -> None:
    """In synchronous runs every member's parameters equal those of a run without faults, up to rounding."""
    name = chosen.settings.federation.name
    for member in chosen.members:
        topic = f"{name}.{COORDINATOR if member == 'coordinator' else member}.state"
        states = [latest(one, topic) for one in (bus, calm)]
        for partition in range(chosen.partitions):
            found, expected = (state.get((partition, b"array/parameters/0")) for state in states)
            require((found is None) == (expected is None), f"{member}: only one of two runs learnt anything")
            if found is not None and expected is not None:
                apart = float(np.abs(np.frombuffer(found) - np.frombuffer(expected)).max(initial=0.0))
                require(
                    apart <= ROUNDING, f"{member}: the model is {apart:g} from that of a run without faults"
                )
