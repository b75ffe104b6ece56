"""What must hold of a federation of differentially private Frank-Wolfe, whatever happened: checked from
topics and draws."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from dp_frank_wolfe.proof.observed_messages import messages_of, names_by_window, timed_messages
from dp_frank_wolfe.proof.oracle import (
    expected,
    expected_estimate,
    place_of,
    possible_windows,
    possibly_heard,
    presence,
    weights_of,
)
from dp_frank_wolfe.proof.scenario import NAME, STRANGER, DPFrankWolfeScenario, S
from dp_frank_wolfe.proof.serving_checks import check_parts_of_entities, check_serving, prediction_cost

from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.messages import Entities, FittedModel, Frozen, Message, Partial, read_content
from streamfl.dp_frank_wolfe.party.window import Window
from streamfl.dp_frank_wolfe.tools.centring import centre_for
from streamfl.runtime.kinds import find_kind
from streamfl.runtime.remembered_positions import POSITION_KEY
from streamfl.simulation.vertical.members import samples_topic
from streamfl.testing.faults.cluster import FaultyBus
from streamfl.testing.faults.observed_messages import require

__all__ = ["check_budget", "check_outcome", "check_said"]

# Messages with releases of a party's rows. Work that is done again sends the same.
RELEASES = ("frozen", "answers", "chosen", "products")
# Sums of the same costs in another order.
ROUNDING = 1e-9
# What an entity is charged where no promise holds.
WITHOUT_NOISE = 1e300
By = Mapping[str, Sequence[Message]]
# Share of the patience: a message is written some time after its sender began to wait for an answer.
LEAST_PATIENCE = 0.5


def check_outcome(bus: FaultyBus, chosen: DPFrankWolfeScenario) -> None:
    """Only strangers' records were refused, all releases are paid for, and models are those of a fit without
    faults."""
    check_budget(chosen)
    check_refused(bus, chosen)
    asks, releases = told(bus, chosen, "asks"), told(bus, chosen, "releases")
    manifests = check_manifests(chosen, asks, releases)
    check_paid(bus, chosen, manifests)
    for window, names in manifests.items():
        check_model(chosen, window, names, of_window(asks, window), of_window(releases, window))
    check_left_out(bus, chosen, asks, releases)
    check_serving(bus, chosen, asks, releases)
    check_parts_said(chosen)


def check_said(bus: FaultyBus, chosen: DPFrankWolfeScenario) -> None:
    """Work that was done again sent the same, no noise covers two contents, and no entity is known beyond its
    budget."""
    check_parts_of_entities(bus, chosen)
    chosen.observed.check_drawn()
    for (sender, channel, window, iteration, kind), contents in chosen.observed.sent.items():
        what = (
            f"{sender} said {len(contents)} things as {kind} of window {window}, iteration {iteration}, on "
            f"{channel}"
        )
        require(len(contents) == 1 or kind not in RELEASES, what)


def check_parts_said(chosen: DPFrankWolfeScenario) -> None:
    """Each number of a party's parts of predictions belongs to one part, sent once or again."""
    for (sender, _, _, number, kind), contents in chosen.observed.sent.items():
        require(
            kind != "partial" or len(contents) == 1,
            f"{sender} said {len(contents)} things as part {number} of a prediction",
        )


def check_budget(chosen: DPFrankWolfeScenario) -> None:
    """The parties' shares do not exceed the budget, and all noise of a window costs no more than the window
    is charged."""
    public = Public(chosen.of(chosen.parties[0]))
    require(
        not public.cost * (1 + ROUNDING) < sum(map(public.party_cost, chosen.parties)),
        "parties' shares are above the budget",
    )
    for (party, window), spent in chosen.observed.spent().items():
        allowed = public.fit_cost(party)
        require(
            spent <= allowed * (1 + ROUNDING),
            f"{party}: noise of window {window} costs {spent:g}, and {allowed:g} is allowed",
        )


def check_refused(bus: FaultyBus, chosen: DPFrankWolfeScenario) -> None:
    """The dead letters are the strangers' records, each once, and nothing else."""
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


def told(bus: FaultyBus, chosen: DPFrankWolfeScenario, kind: str) -> dict[str, list[Message]]:
    """By party, all messages of its topic of this kind. The server asks a late party the same again; that
    counts once."""
    return {
        party: list(dict.fromkeys(messages_of(bus, f"{NAME}.{party}.{kind}"))) for party in chosen.parties
    }


def of_window(messages: By, window: int) -> dict[str, list[Message]]:
    return {party: [one for one in own if one.window == window] for party, own in messages.items()}


def check_manifests(chosen: DPFrankWolfeScenario, asks: By, releases: By) -> dict[int, list[str]]:
    """The names of each window. Checks: the same at all parties, as many as a window has, known to all, none
    in too many windows.

    In the end fewer entities are left than a window has: no late entity is forgotten.
    """
    given: dict[int, list[list[str]]] = defaultdict(list)
    for party, own in asks.items():
        said = Counter((one.window, one.iteration, one.kind) for one in own)
        twice = [one for one, count in said.items() if count > 1]
        require(not twice, f"the server told {party} twice: {twice[:3]}")
        windows = [one.window for one in own if one.kind == "manifest"]
        require(windows == list(range(1, len(windows) + 1)), f"windows of {party} are {windows}")
        for window, names in names_by_window(own, releases[party], chosen.rows).items():
            given[window].append(names)
    found: dict[int, list[str]] = {}
    announced = {party: _announced(own) for party, own in releases.items()}
    for window, (names, *others) in sorted(given.items()):
        require(
            all(other == names for other in others), f"window {window} is of other names for another party"
        )
        require(
            len(names) == chosen.rows, f"window {window} has {len(names)} rows, {chosen.rows} are in a window"
        )
        require(names == sorted(set(names)), f"window {window}: names are not in order, each once")
        for party, own_names in announced.items():
            require(set(names) <= set(own_names), f"window {window} has names that {party} never announced")
        found[window] = names
    fits = int(chosen.sections["window"]["fits"])
    most = Counter(name for names in found.values() for name in names).most_common(1)
    public = Public(chosen.of(chosen.parties[0]))
    limited = public.settings.privacy.is_private
    if limited:
        # What predictions do not use may pay for more.
        fits = max(
            int(public.party_cost(party) / public.fit_cost(party) * (1 + ROUNDING))
            for party in chosen.parties
        )
    require(not limited or not most or most[0][1] <= fits, f"{most} windows of one entity, {fits} may be")
    return found


def _announced(messages: Sequence[Message]) -> Counter[str]:
    return Counter(
        name
        for one in messages
        if one.kind == "entities"
        for name in read_content(one.content, Entities).names
    )


def check_paid(bus: FaultyBus, chosen: DPFrankWolfeScenario, manifests: Mapping[int, Sequence[str]]) -> None:
    """Each party charged every entity for each window it froze, in full, no later than it released, and no
    other entity."""
    for party in chosen.parties:
        settings = chosen.of(party)
        public = Public(settings)
        private = settings.privacy.is_private
        cost, each = (
            (public.fit_cost(party), prediction_cost(public, party))
            if private
            else (WITHOUT_NOISE, WITHOUT_NOISE)
        )
        counts = settings.serving.mode == "private"
        frozen: dict[int, float] = {}
        parts: dict[str, list[float]] = defaultdict(list)
        first_told: dict[int, float] = {}
        for at, one in timed_messages(bus, f"{NAME}.{party}.releases"):
            if one.kind in RELEASES:
                first_told.setdefault(one.window, at)
            if one.kind == "partial" and counts:
                parts[read_content(one.content, Partial).entity].append(at)
            if one.kind == "frozen":
                frozen[one.window] = at
                digest = hashlib.sha256(msgspec.msgpack.encode([list(manifests[one.window])])).digest()
                same = read_content(one.content, Frozen).manifest == digest
                require(same, f"{party}: window {one.window} is frozen with another manifest")
        require(
            first_told.keys() == frozen.keys(),
            f"{party}: told of {sorted(first_told)}, and froze {sorted(frozen)}",
        )
        drawn = {window for whose, window in chosen.observed.spent() if whose == party and window > 0}
        require(
            drawn <= frozen.keys(),
            f"{party}: noise was drawn in windows {sorted(drawn - frozen.keys())}, never frozen",
        )
        charged = _charges(bus, find_kind(settings.role.kind).channels(settings).changelogs["ledger"])
        names_by_window: dict[str, list[int]] = defaultdict(list)
        for window in sorted(frozen):
            for name in manifests[window]:
                names_by_window[name].append(window)
        strange = charged.keys() - names_by_window.keys() - parts.keys()
        require(not strange, f"{party}: charged, and in no window: {sorted(strange)[:3]}")
        for name in sorted(names_by_window.keys() | parts.keys()):
            history, windows = charged.get(name, []), names_by_window.get(name, [])
            released = [(first_told[window], cost, False) for window in windows]
            # A part is sent once it is remembered, so it was charged in a commit before.
            released += [(at, each, True) for at in parts.get(name, [])]
            due = 0.0
            for when, price, before in sorted(released):
                due = min(due + price, WITHOUT_NOISE)
                paid = max(
                    (spent for at, spent in history if at < when or (at == when and not before)), default=0.0
                )
                what = (
                    f"{party}: {name} was charged {paid:g} at {when:g}, {due:g} is due for what was told by "
                    "then"
                )
                require(paid >= due * (1 - ROUNDING), what)
            total = history[-1][1]
            exact = abs(total - due) <= ROUNDING * total
            require(
                exact,
                f"{party}: {name} was charged {total:g}, {due:g} is due for {len(windows)} windows and "
                "predictions",
            )
            most = public.party_cost(party)
            within = total <= most * (1 + ROUNDING) or cost == WITHOUT_NOISE
            require(within, f"{party}: {name} was charged {total:g}, beyond {most:g}")


def _charges(bus: FaultyBus, topic: str) -> dict[str, list[tuple[float, float]]]:
    """By entity, times and what it was charged in all by then."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for record in bus.read(topic):
        key = record.key or b""
        if key.startswith(b"spent/") and record.value is not None and not key.startswith(POSITION_KEY):
            spent = msgspec.msgpack.decode(record.value)[0]
            found[key.partition(b"/")[2].decode()].append((record.timestamp, float(spent)))
    return found


def check_left_out(bus: FaultyBus, chosen: DPFrankWolfeScenario, asks: By, releases: By) -> None:
    """No party is left out while it may still answer: a window without some party, or one before it, has
    taken long.

    A party that was away is back after the final restart, because it has announced new names.
    """
    party, began = chosen.parties[0], math.inf
    restarted = max(record.timestamp for record in bus.read(samples_topic(party)))
    for at, one in timed_messages(bus, f"{NAME}.{party}.asks"):
        began = at if one.kind == "manifest" and at >= restarted > began else min(began, at)
        if one.kind == "model" and at - began < chosen.of(S).window.patience_seconds * LEAST_PATIENCE:
            missing = _left_out(
                chosen, one.window, of_window(asks, one.window), of_window(releases, one.window)
            )
            require(
                not missing,
                f"window {one.window}, over {at - began:.3g} s after all began, was without {missing[:3]}",
            )


def _left_out(chosen: DPFrankWolfeScenario, window: int, asks: By, releases: By) -> list[str]:
    """Parties that were not asked, or whose answers were not used, in words."""
    public = Public(chosen.of(S))
    if public.settings.learning.estimator != "frank-wolfe":
        kinds = ("chosen",) if public.settings.learning.estimator == "marginal" else ("chosen", "products")
        told = {party: {one.kind for one in own} for party, own in releases.items()}
        return [f"{kind} of {party}" for party in chosen.parties for kind in kinds if kind not in told[party]]
    there = presence(chosen, asks, releases)
    last = max((iteration for iteration, _ in there.asked), default=0)
    iterations = range(last + 1 if there.stopped else public.settings.learning.iterations)
    due = {
        (one, public.blocks[block].party)
        for one in iterations
        for block in public.sampling.blocks_of(window, one)
    }
    return [f"{party} in iteration {iteration}" for iteration, party in sorted(due - there.used)]


def check_model(
    chosen: DPFrankWolfeScenario, window: int, names: Sequence[str], asks: By, releases: By
) -> None:
    """The model equals the arithmetic alone, to the last bit, for one of the windows that could be frozen of
    these names."""
    models = {party: [one for one in own if one.kind == "model"] for party, own in asks.items()}
    require(len({len(own) for own in models.values()}) == 1, f"window {window}: not all parties have a model")
    if not all(models.values()):
        return
    found = {
        party: weights_of(read_content(own[-1].content, FittedModel), chosen.columns[party])
        for party, own in models.items()
    }
    public = Public(chosen.of(chosen.parties[0]))
    for number, block in enumerate(public.blocks):
        norm = float(np.abs(found[block.party][list(block.columns)]).sum())
        learning = public.settings.learning
        radius = block.radius if learning.estimator == "frank-wolfe" else learning.radius
        require(
            norm <= radius * (1 + ROUNDING),
            f"window {window}: block {number} has left its ball: {norm:g} of {radius:g}",
        )
    there = presence(chosen, asks, releases) if public.settings.learning.estimator == "frank-wolfe" else None
    heard = [] if there is not None else possibly_heard(chosen, releases)
    possible: dict[str, list[Window]] = {}
    for party in chosen.parties:
        own = possible_windows(chosen, party, names)
        # If a party never froze the window, any will do.
        possible[party] = [one for one in own if one.digest in chosen.observed.frozen] or own[:1]
        was_frozen = any(one.kind == "frozen" for one in releases[party])
        wrong = was_frozen and possible[party][0].digest not in chosen.observed.frozen
        require(not wrong, f"{party}: window {window} is not of what users wrote")
    apart = math.inf
    for combined in itertools.product(*possible.values()):
        windows = dict(zip(possible, combined, strict=True))
        places = {party: place_of(chosen, party, window) for party in windows}
        windows = centre_for(public, windows, places.__getitem__).windows
        if there is not None:
            # A fit whose parties were all late in the last step looks like a fit that ended before it.
            ways = (there, presence(chosen, asks, releases, stops=False))[
                : 1 if chosen.patient or not there.stopped else 2
            ]
            candidates = (expected(chosen, windows, window, way, places).x for way in ways)
        else:
            candidates = (expected_estimate(chosen, windows, places, *own) for own in heard)
        for x in candidates:
            apart = min(apart, max(float(np.abs(x[party] - found[party]).max()) for party in x))
            if apart == 0:
                return
    require(False, f"window {window}: the model is {apart:g} from that of the arithmetic alone")
