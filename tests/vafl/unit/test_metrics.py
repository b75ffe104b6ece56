"""What members of a vertical federation serve, and what their dashboard shows of it."""

from __future__ import annotations

import json
import re

import pytest
from page_commands import page_text
from served import Served, joined, served_by

from streamfl.reference.metrics import role_metrics, worker_metrics
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.vafl import SYSTEM
from streamfl.vafl.tools.dashboard import DASHBOARDS

TUTORIAL = page_text("vertical.md", "Tutorial")

# Whose worker it is.
OF_EACH_SERIES = {"system", "federation", "role", "group"}


@pytest.fixture(scope="module", name="served")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """What members of the tutorial serve, with noise and without.

    They learn from one entity: accuracy and loss are there only after a label of one that was predicted.
    """
    folder = tmp_path_factory.mktemp("members")
    blocks = re.findall(r"```toml\n(.*?)```", TUTORIAL, re.DOTALL)
    (folder / "secret").write_bytes(bytes(range(32)))
    (folder / "secret").chmod(0o600)
    noise = {"embedding_norm": 1.0, "embedding_noise": 1.0, "secret_file": str(folder / "secret")}
    labels = {"reply_noise": 1.0, "budget_mu": 9.0, "secret_file": str(folder / "secret")}
    privacy = [noise, {**noise, "gradient_norm": 1.0, "gradient_noise": 1.0, "budget_mu": 9.0}, labels]
    bus, workers = MemoryBus(), []
    for number, (block, section) in enumerate(zip(blocks, privacy, strict=True)):
        (folder / f"{number}.toml").write_text(block, encoding="utf-8")
        workers.append(joined(folder / f"{number}.toml", {"privacy": section}, bus))
    for topic, content in (
        ("accounts", {"age": 1.0, "income": 1.0, "debts": 1.0}),
        ("baskets", {"visits": 1.0, "returns": 1.0}),
        ("outcomes", {"defaulted": 1}),
    ):
        bus.write(
            [Outgoing(topic, b"ann", json.dumps(content).encode()), Outgoing(topic, b"ann", b"no record")]
        )
        for worker in workers * 3:
            worker.step(0.0)
    found: Served = {}
    for worker in workers:
        for name, (kind, names) in served_by(worker).items():
            found[name] = kind, names | found.get(name, ("", set()))[1]
        worker.close()
    return found


def test_documented_metrics_are_the_exported_ones(served: Served) -> None:
    """Protects dashboards and alerts: what the reference names is what members serve, with its kind and
    labels."""
    found = [*role_metrics(SYSTEM).values(), worker_metrics()]
    documented = {name: (one.kind, set(one.labels)) for metrics in found for name, one in metrics.items()}
    # The square loss alone has it.
    assert documented.keys() - served.keys() == {"streamfl_rmse_windowed"}
    assert {name: documented[name][0] for name in served} == {
        name: kind for name, (kind, _) in served.items()
    }
    # Of long work, which these roles have none of, nothing is served but the name.
    without = {"streamfl_work_seconds"}
    assert {
        name for name, (_, labels) in served.items() if documented[name][1] != labels - OF_EACH_SERIES
    } == without


def test_vertical_queries_find_what_members_serve(served: Served) -> None:
    """Protects the vertical dashboards from staying empty: members serve each of their series."""
    for board in DASHBOARDS:
        for expression in board.expressions:
            for series in re.findall(r"streamfl_\w+", expression):
                assert series in served, expression
