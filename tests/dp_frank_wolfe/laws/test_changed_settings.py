"""A setting that is changed in the midst of a fit: whatever is released then is paid for."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from dp_frank_wolfe.federations import COLUMNS, SERVER_MEMBER, parties_of, settings_of
from dp_frank_wolfe.proof.ledgers import without_power_cuts
from dp_frank_wolfe.proof.observed_messages import Observed, messages_of, names_by_window, recorded

from streamfl.configuration.settings import BusSection
from streamfl.contract.role import ConfigurationError
from streamfl.dp_frank_wolfe.config import DPFrankWolfeSettings
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus

ROWS, PARTIES = 12, parties_of(2)
RELEASES = ("frozen", "answers", "chosen", "products")
# Each makes another release of the same rows, or another price. Keys of learning are compared all together.
CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    "nothing": {},
    "epsilon": {"privacy": {"epsilon": 8.0}},
    "no noise": {"privacy": {"epsilon": math.inf}},
    "delta": {"privacy": {"delta": 1e-4}},
    "shares": {"privacy": {"shares": {"party-0": 0.7, "party-1": 0.3}}},
    "test noise": {"privacy": {"insecure_test_noise": True}},
    "another ledger": {"privacy": {"ledger": "others"}},
    "iterations": {"learning": {"iterations": 3}},
    "estimator": {"learning": {"estimator": "marginal"}},
    "bounds": {"bounds": {"bound": 0.5}},
    "label bound": {"bounds": {"label_bound": 0.5}},
    "prediction": {"bounds": {"prediction": 2.0}},
    "rows": {"window": {"rows": ROWS - 1}},
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
    bus, observed = MemoryBus(), Observed()
    first, second = members(tmp_path, {}), members(tmp_path, CHANGES[change])
    with without_power_cuts(), recorded(observed):
        go_on(bus, first, 1.0, until=lambda: len(messages_of(bus, "f.party-0.releases")) >= 4)
        before = sum(1 for _ in bus.read("f.party-0.releases"))
        try:
            go_on(bus, second, -0.5)
        except ConfigurationError:
            assert sum(1 for _ in bus.read("f.party-0.releases")) == before
            assert change != "nothing"
    # No noise lies over two contents, and there is one release in one place.
    observed.check_drawn()
    federations = {own.federation.name for own in (first[0], second[0])}
    sent = observed.sent.items() if len(federations) == 1 else ()
    assert not [named for named, contents in sent if named[-1] in RELEASES and len(contents) > 1]
    manifests: dict[tuple[str, int], list[str]] = {}
    for federation in federations:
        for party in PARTIES:
            asks, releases = (
                messages_of(bus, f"{federation}.{party}.{kind}") for kind in ("asks", "releases")
            )
            found = names_by_window(asks, releases, ROWS)
            manifests |= {(federation, window): names for window, names in found.items()}
    costs: dict[tuple[str, str], float] = defaultdict(float)
    for drawn in {one for found in observed.drawn.values() for one in found}:
        for name in manifests[drawn.release.federation, drawn.release.window]:
            costs[drawn.release.ledger.partition(" ")[0], name] += drawn.cost
    assert costs
    charged = charged_on(bus, [*first, *second])
    for place, cost in costs.items():
        assert cost <= charged[place] * (1 + 1e-9), f"{place}: {cost:g}, {charged[place]:g} were charged"


def members(folder: Path, sections: dict[str, dict[str, Any]]) -> list[DPFrankWolfeSettings]:
    window = {"rows": ROWS, "patience_seconds": 1e6, **sections.get("window", {})}
    return [
        settings_of(member, 2, folder, **{**sections, "window": window})
        for member in (*PARTIES, SERVER_MEMBER)
    ]


def rows(sign: float) -> list[Outgoing]:
    """Of the entities of a window and some more, and of others where the sign is another."""
    random, found = np.random.default_rng(1), []
    names = [f"e{row}" for row in range(ROWS + 5)] + [f"{sign}-{row}" for row in range(ROWS + 5)]
    for name in names:
        for party in PARTIES:
            own = {f"x{at}": sign * value for at, value in enumerate(random.uniform(-1, 1, COLUMNS).tolist())}
            found.append(Outgoing(f"{party}-samples", name.encode(), msgspec.json.encode(own), 0))
        label = {"y": sign * float(random.uniform(-1, 1))}
        found.append(Outgoing("labels", name.encode(), msgspec.json.encode(label), 0))
    return found


def go_on(
    bus: MemoryBus,
    settings: Sequence[DPFrankWolfeSettings],
    sign: float,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Start a worker of each member, write rows, and go on until nothing moves. Then all end."""
    specs = {spec.name: spec for own in settings for spec in find_kind(own.role.kind).topics(own)}
    present = bus.describe(specs)
    bus.create([replace(spec, partitions=1) for name, spec in specs.items() if name not in present])
    workers = [
        build_worker(own.model_copy(update={"bus": BusSection(commit_interval_ms=0)}), bus)
        for own in settings
    ]
    try:
        bus.write(rows(sign))
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
