"""Kills at every commit, other orders of topics, changed settings, and state that was rolled back: nothing is
released twice."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from dp_frank_wolfe.laws.troubled_loop import S, TroubledLoop, settings_of
from dp_frank_wolfe.proof.ledgers import without_power_cuts
from dp_frank_wolfe.proof.observed_messages import Observed, messages_of, names_by_window, recorded
from dp_frank_wolfe.proof.rollback import other_asks

from streamfl.configuration.settings import BusSection
from streamfl.contract.role import BadRecord, ConfigurationError, StateChange
from streamfl.dp_frank_wolfe.config import DPFrankWolfeSettings
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.testing.faults.observed_messages import TopicReader

ROWS = 20
PARTIES = ("p1", "p2")
ESTIMATORS = ("frank-wolfe", "marginal", "two-round")
ROUNDING = 1 + 1e-9
RELEASES = ("frozen", "answers", "chosen", "products")


def federation(folder: Path, estimator: str = "frank-wolfe", seed: int = 0) -> TroubledLoop:
    """Two parties and a server, with entities for one window, and some more."""
    members = ("p1", "p2", S)
    loop = TroubledLoop(
        {name: settings_of(folder, name, learning={"estimator": estimator}) for name in members}, seed
    )
    for row in range(ROWS + 5):
        loop.write_row(f"e{row}", row)
    return loop


@contextmanager
def noted() -> Iterator[Observed]:
    observed = Observed()
    with without_power_cuts(), recorded(observed):
        yield observed


def model_of(loop: TroubledLoop, window: int = 1) -> list[bytes]:
    """What parties were told of the model."""
    found = []
    for party in (one for one in loop.members if one != S):
        found += [
            one.content
            for one in messages_of(loop, f"f.{party}.asks")
            if one.kind == "model" and one.window == window
        ]
    return found


def check_releases(observed: Observed) -> None:
    """No noise lies over two contents, and there is one release in one place."""
    observed.check_drawn()
    doubled = [
        named for named, contents in observed.sent.items() if named[-1] in RELEASES and len(contents) > 1
    ]
    assert not doubled, f"two releases in one place: {doubled}"


def check_paid(
    observed: Observed,
    manifests: Mapping[tuple[str, int], Sequence[str]],
    charged: Mapping[tuple[str, str], float],
) -> None:
    """All noise that was drawn is paid for, entity by entity.

    manifests: by federation and window. charged: by ledger and entity.
    """
    costs: dict[tuple[str, str], float] = defaultdict(float)
    for drawn in {one for found in observed.drawn.values() for one in found}:
        release = drawn.release
        for name in manifests[release.federation, release.window]:
            costs[release.ledger.partition(" ")[0], name] += drawn.cost
    assert costs
    for place, cost in costs.items():
        assert cost <= charged[place] * ROUNDING, (
            f"{place}: releases cost {cost:g}, {charged[place]:g} were charged"
        )


def manifests_of(
    topics: TopicReader, federation: str = "f", parties: Sequence[str] = PARTIES
) -> dict[tuple[str, int], list[str]]:
    """By federation and window, its names."""
    found: dict[tuple[str, int], list[str]] = {}
    for party in parties:
        asks, releases = (
            messages_of(topics, f"{federation}.{party}.{kind}") for kind in ("asks", "releases")
        )
        found |= {
            (federation, window): names for window, names in names_by_window(asks, releases, ROWS).items()
        }
    return found


def charges_of(loop: TroubledLoop) -> dict[tuple[str, str], float]:
    """By ledger and entity, the most that a ledger ever held of it."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for party in PARTIES:
        for change in (one for commit in loop.members[party].changes for one in commit):
            if change.channel == "ledger" and change.key.startswith(b"spent/") and change.value is not None:
                place = f"patients-{party}", change.key.partition(b"/")[2].decode()
                found[place] = max(found[place], float(msgspec.msgpack.decode(change.value)[0]))
    return found


def check(loop: TroubledLoop, observed: Observed) -> None:
    check_releases(observed)
    check_paid(observed, manifests_of(loop), charges_of(loop))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_commit_is_lost_once_or_twice(estimator: str, tmp_path: Path) -> None:
    """Protects rows from a second release: each step is done in vain, on another poll, and then anew. The
    model stays the same."""
    calm = federation(tmp_path, estimator)
    calm.settle()
    assert len(model_of(calm)) == 2
    for seed, most in ((1, 50), (2, 3)):
        # Links that were noted in the calm run are the same here, or they are refused.
        with noted() as observed:
            loop = federation(tmp_path, estimator, seed)
            loop.settle(most, lost=1 + seed % 2)
            check(loop, observed)
        assert not [one for member in loop.members.values() for one in member.rejections]


def test_the_model_does_not_depend_on_crashes(tmp_path: Path) -> None:
    """Protects whoever learns: with the same entities in the window, lost work leads to the same model."""
    models = []
    for lost in (0, 2):
        folder = tmp_path / str(lost)
        folder.mkdir()
        loop = TroubledLoop(
            {name: settings_of(folder, name, privacy={"epsilon": math.inf}) for name in ("p1", "p2", S)}, lost
        )
        for row in range(ROWS):
            loop.write_row(f"e{row}", row)
        loop.settle(lost=lost)
        models.append(model_of(loop))
    assert models[0] == models[1]
    assert len(models[0]) == 2


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_state_that_was_rolled_back_releases_nothing_else(estimator: str, tmp_path: Path) -> None:
    """Protects rows where a changelog lies about how far it came: with other rows and other questions,
    nothing new is told.

    Each prefix of a party's commits is tried, and each of what one changelog of the two holds alone.
    """
    with noted() as observed:
        loop = federation(tmp_path, estimator)
        loop.settle()
        commits = len(loop.members["p1"].changes)
        check(loop, observed)
        refused = 0
        for cut in range(commits):
            refused += hears_other_things(loop, "p1", cut, {"state", "ledger"})
            refused += hears_other_things(loop, "p1", cut, {"ledger"})
            refused += hears_other_things(loop, "p1", cut, {"state"})
        assert refused > commits // 2
        check_releases(observed)


def test_other_rows_are_not_frozen_again(tmp_path: Path) -> None:
    """Protects rows where all of a state is lost and the users' records are others by now: chance could
    release the same bytes of them, and that would tell something.
    """
    with noted() as observed:
        loop = federation(tmp_path)
        loop.settle()
        before = set(observed.drawn)
        observed.sent.clear()
        assert hears_other_things(loop, "p1", 0, {"state", "ledger"})
        assert not [named for named in observed.sent if named[-1] in RELEASES]
        # What would have been told of the new window is part of its link, which the file refuses: it was
        # drawn, and left nobody.
        drawn = {one.release.kind for head in observed.drawn.keys() - before for one in observed.drawn[head]}
        assert drawn == {"means"}


def hears_other_things(loop: TroubledLoop, party: str, cut: int, of: set[str]) -> bool:
    """A party is taken up from its first commits, by the changelogs ``of``, and hears other rows and
    questions. Whether it says that something is wrong.
    """
    member = loop.members[party]
    early, all_of_it = member.state(cut), member.state()
    state = {place: value for place, value in all_of_it.items() if place[0] not in of}
    state |= {place: value for place, value in early.items() if place[0] in of}
    scratch = TroubledLoop({party: member.settings}, seed=cut)
    scratch.now = loop.now + 10.0
    own = scratch.members[party]
    own.changes = [[]]
    try:
        for (channel, key), value in state.items():
            own.role.restore(StateChange(channel, 0, key, value))
        for row in range(ROWS + 5):
            scratch.write_row(f"e{row}", row, sign=-0.5)
        scratch.settle()
        asks = f"f.{party}.asks"
        for one in messages_of(loop, asks):
            for other in (*other_asks(one), one):
                scratch.write(asks, None, msgspec.msgpack.encode(other))
                scratch.settle()
    except BadRecord:
        return True
    return bool(own.troubles)


# Each of them with a value that makes another release of the same rows, or another price.
CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    "nothing": {},
    "epsilon": {"privacy": {"epsilon": 8.0}},
    "no noise": {"privacy": {"epsilon": math.inf}},
    "delta": {"privacy": {"delta": 1e-3}},
    "shares": {"privacy": {"shares": {"p1": 0.7, "p2": 0.3}}},
    "test noise": {"privacy": {"insecure_test_noise": True}},
    "another ledger": {"privacy": {"ledger": "others"}},
    "radius": {"learning": {"radius": 2.0}},
    "columns": {"learning": {"columns": 2}},
    "iterations": {"learning": {"iterations": 3}},
    "sketch rows": {"learning": {"sketch_rows": 7}},
    "sketch": {"learning": {"sketch": "identity"}},
    "choice share": {"learning": {"choice_share": 0.3}},
    "estimator": {"learning": {"estimator": "marginal"}},
    "bounds": {"bounds": {"bound": 1.0}},
    "label bound": {"bounds": {"label_bound": 1.0}},
    "prediction": {"bounds": {"prediction": 2.0}},
    "rows": {"window": {"rows": 19}},
    "fits": {"window": {"fits": 2}},
    "federation": {"federation": {"name": "g"}},
    "seed": {"federation": {"seed": 6}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_setting_releases_nothing_unpaid(change: str, tmp_path: Path) -> None:
    """Protects rows from an operator, or somebody else, who changes a setting in the midst of a fit and
    begins anew.

    Either the members refuse to start, or whatever they release more is paid for by the same ledger.
    """
    bus, rows = MemoryBus(), TroubledLoop({})
    told: list[tuple[str, bytes, bytes]] = []
    rows.write = lambda topic, key, value: told.append((topic, key or b"", value))  # type: ignore[method-assign]
    rows.members = dict.fromkeys((*PARTIES, S))  # type: ignore[arg-type]
    with noted() as observed:
        first = {name: settings_of(tmp_path, name) for name in (*PARTIES, S)}
        for row in range(ROWS + 5):
            rows.write_row(f"e{row}", row)
        go_on(bus, first, told, until=lambda: len(messages_of(bus, "f.p1.releases")) >= 4)
        before = sum(1 for _ in bus.read("f.p1.releases"))
        told.clear()
        for row in range(ROWS + 5):
            rows.write_row(f"e{row}", row, sign=-0.5)
            rows.write_row(f"new-{row}", 100 + row)
        second = {name: settings_of(tmp_path, name, **CHANGES[change]) for name in (*PARTIES, S)}
        try:
            go_on(bus, second, told)
        except ConfigurationError:
            assert sum(1 for _ in bus.read("f.p1.releases")) == before
            assert change != "nothing"
        federation = second[S].federation.name
        check_releases(observed) if federation == "f" else observed.check_drawn()
        manifests = manifests_of(bus) | (manifests_of(bus, federation) if federation != "f" else {})
        check_paid(observed, manifests, charged_on(bus, [*first.values(), *second.values()]))


def go_on(
    bus: MemoryBus,
    settings: Mapping[str, DPFrankWolfeSettings],
    told: Sequence[tuple[str, bytes, bytes]],
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Start a worker of each member, write these records, and go on until nothing moves. Then all end."""
    specs = {spec.name: spec for own in settings.values() for spec in find_kind(own.role.kind).topics(own)}
    present = bus.describe(specs)
    bus.create([replace(spec, partitions=1) for name, spec in specs.items() if name not in present])
    workers = [
        build_worker(own.model_copy(update={"bus": BusSection(commit_interval_ms=0)}), bus)
        for own in settings.values()
    ]
    try:
        bus.write([Outgoing(topic, key, value, 0) for topic, key, value in told])
        while not until() and sum(worker.step(0.0) for worker in workers):
            pass
    finally:
        for worker in workers:
            worker.close()


def charged_on(bus: MemoryBus, settings: Sequence[DPFrankWolfeSettings]) -> dict[tuple[str, str], float]:
    """By ledger and entity, the most that a ledger's topic ever held of it."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for own in settings:
        topic = find_kind(own.role.kind).channels(own).changelogs.get("ledger")
        for record in bus.read(topic) if topic is not None else ():
            if (record.key or b"").startswith(b"spent/") and record.value is not None:
                place = str(own.privacy.ledger), (record.key or b"").partition(b"/")[2].decode()
                found[place] = max(found[place], float(msgspec.msgpack.decode(record.value)[0]))
    return found
