"""The dashboards: what Grafana would refuse or leave empty without a word."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streamfl.role import TopicSpec
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker
from streamfl.settings import load_kind, load_settings

ROOT = Path(__file__).parents[2]
DASHBOARDS = sorted((ROOT / "dashboards").glob("*.json"))
DOCUMENTED = re.compile(r"^\| `(streamfl_[a-z_]+)` \| (counter|gauge|histogram) \|(.*?)\|", re.MULTILINE)
USED = re.compile(r"\bstreamfl_[a-z_]+\b")
# What Prometheus itself says of everything that it scrapes.
PROMETHEUS_OWN = re.compile(r"\bup\{")
HISTOGRAM_SERIES = ("_bucket", "_sum", "_count")
GRID_COLUMNS = 24


Metrics = dict[str, tuple[str, set[str]]]


def documented(vertical: bool = False) -> Metrics:
    """Type and labels of every metric in docs/metrics.md, by name, of POF-MKL's roles or of a vertical federation's."""
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    before, _, own = text.partition("\n## Vertical federations\n")
    own, _, workers = own.partition("\n## ")
    text = (own if vertical else before) + workers
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in DOCUMENTED.findall(text)}


def metrics_of(dashboard: dict[str, Any]) -> Metrics:
    """The metrics that a dashboard may show."""
    return documented(vertical=dashboard["uid"] == "streamfl-vertical")


def metric_of(series: str, names: Metrics) -> str:
    """The metric that a series belongs to: a histogram is queried by its three series."""
    for suffix in HISTOGRAM_SERIES:
        base = series.removesuffix(suffix)
        if base != series and names.get(base, ("", set()))[0] == "histogram":
            return base
    return series


def expressions(dashboard: dict[str, Any]) -> list[str]:
    """Every query of a dashboard, those behind its variables included."""
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return queries + [item["definition"] for item in dashboard["templating"]["list"] if item["type"] == "query"]


@pytest.fixture(params=DASHBOARDS, ids=lambda path: path.stem)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(request.param.read_text(encoding="utf-8"))
    return loaded


def joined(configuration: Path, sections: dict[str, Any], bus: MemoryBus) -> Worker:
    """A worker with this configuration that has joined its group, its topics made."""
    kind = find_kind(load_kind(configuration))
    settings = load_settings(configuration, kind.settings, {"bus": {"url": "memory://"}, **sections})
    there = bus.describe([spec.name for spec in kind.topics(settings)])
    bus.create(
        [
            TopicSpec(spec.name, spec.partitions or 2, spec.compacted, spec.options)
            for spec in kind.topics(settings)
            if spec.name not in there
        ]
    )
    worker = build_worker(settings, bus)
    while not worker.step(0.01):
        pass
    return worker


def served_by(worker: Worker) -> Metrics:
    """Type and labels of every metric that a worker serves, by name."""
    families = list(text_string_to_metric_families(worker.metrics.render().decode()))
    # The parser takes the suffix off a counter's name, and the library tells when each counter was made.
    return {
        f"{family.name}_total" if family.type == "counter" else family.name: (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in families
        if not family.name.endswith("_created")
    }


def exported(configuration: Path, sections: dict[str, Any]) -> dict[str, str]:
    """Type of every metric, by name, that a worker with this configuration serves once it has joined its group."""
    with closing(joined(configuration, sections, MemoryBus())) as worker:
        return {name: kind for name, (kind, _) in served_by(worker).items()}


def test_documented_metrics_are_the_exported_ones() -> None:
    """Protects dashboards and alerts: what the document names is what workers serve, no more, no less, with its type.

    Some is served with the logistic loss only, with challengers, or with labels on a topic of their own.
    """
    served: dict[str, str] = {}
    for configuration in sorted((ROOT / "deploy").glob("*.toml")):
        served |= exported(configuration, {"learning": {"loss": "logistic"}, "challengers": {"models": ["last-label"]}})
    late = {"samples": {"sample_id": "id", "label": None}, "labels": {"topic": "late", "sample_id": "id", "label": "y"}}
    served |= exported(ROOT / "deploy" / "client.toml", late)
    assert {name: kind for name, (kind, _) in documented().items()} == served


def test_there_is_an_overview_of_each_system() -> None:
    """Protects the promise of an overview of federations of both kinds: without a file the tests below would pass on nothing."""
    assert {"federation", "vertical"} <= {path.stem for path in DASHBOARDS}


def test_dashboards_have_ids_of_their_own() -> None:
    """Protects provisioning: of two dashboards with one uid Grafana shows only one."""
    identifiers = [json.loads(path.read_text(encoding="utf-8"))["uid"] for path in DASHBOARDS]
    assert len(set(identifiers)) == len(identifiers)


def test_panels_are_complete_and_unique(dashboard: dict[str, Any]) -> None:
    """Protects rendering: Grafana drops a panel whose id is taken, and shows nothing for one without type or query."""
    fields = {"uid": str, "title": str, "schemaVersion": int, "panels": list, "templating": dict, "time": dict}
    for key, kind in fields.items():
        assert isinstance(dashboard[key], kind), key
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["type"] in {"timeseries", "stat", "table", "row", "gauge", "bargauge"}, panel["title"]
        assert panel["description"], panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert references, panel["title"]
        assert len(set(references)) == len(references), panel["title"]
        assert all(target["expr"] and target["legendFormat"] for target in panel["targets"]), panel["title"]


def test_panels_do_not_overlap(dashboard: dict[str, Any]) -> None:
    """Protects the layout: Grafana moves overlapping panels about, differently at every load."""
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        rows = range(place["y"], place["y"] + place["h"])
        assert set(columns) <= set(range(GRID_COLUMNS)), panel["title"]
        cells = {(column, row) for column in columns for row in rows}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_variables_exist(dashboard: dict[str, Any]) -> None:
    """Protects every panel at once: an unknown $variable makes a query match nothing."""
    known = {item["name"] for item in dashboard["templating"]["list"]} | {"__rate_interval", "__interval", "__range"}
    used = {a or b for a, b in re.findall(r"\$(?:\{(\w+)\}|(\w+))", json.dumps(dashboard["panels"]))}
    assert used <= known


def test_queries_name_metrics_that_exist(dashboard: dict[str, Any]) -> None:
    """Protects panels from staying empty: a misspelt or renamed metric is no error to Prometheus."""
    names = metrics_of(dashboard)
    for expression in expressions(dashboard):
        found = USED.findall(expression)
        assert found or PROMETHEUS_OWN.search(expression), expression
        for series in found:
            assert metric_of(series, names) in names, f"{series} in {expression}"


def test_queries_are_well_formed(dashboard: dict[str, Any]) -> None:
    """Protects panels from an error in place of a graph: brackets pair up, counters are read as rates, labels exist."""
    names = metrics_of(dashboard)
    for expression in expressions(dashboard):
        for opening, closed in ("()", "[]", "{}"):
            assert expression.count(opening) == expression.count(closed), expression
        for series in re.findall(r"rate\((\w+)", expression):
            assert names[metric_of(series, names)][0] in {"counter", "histogram"}, f"{series} is no counter in {expression}"
        allowed = {"job", "instance"}.union(*(names[metric_of(series, names)][1] for series in USED.findall(expression)))
        allowed |= {"le"} if "_bucket" in expression else set()
        for grouping in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
            assert {label.strip() for label in grouping.split(",")} <= allowed, expression


def test_overview_shows_what_it_promises() -> None:
    """Protects the overview's purpose: error and the challengers', regret, throughput, lag and upload against budget are there."""
    overview = json.loads((ROOT / "dashboards" / "federation.json").read_text(encoding="utf-8"))
    shown = {metric_of(series, documented()) for expression in expressions(overview) for series in USED.findall(expression)}
    assert shown >= {
        "streamfl_mse",
        "streamfl_challenger_mse_windowed",
        "streamfl_regret_per_sample",
        "streamfl_samples_total",
        "streamfl_consumer_lag_records",
        "streamfl_update_bytes_total",
        "streamfl_update_budget_bytes_total",
    }


def test_vertical_overview_shows_what_it_promises() -> None:
    """Protects its purpose: what comes of learning, who is behind, what is forgotten, what privacy is left, and what is broken."""
    overview = json.loads((ROOT / "dashboards" / "vertical.json").read_text(encoding="utf-8"))
    assert {series for expression in expressions(overview) for series in USED.findall(expression)} >= {
        "streamfl_loss_windowed",
        "streamfl_accuracy",
        "streamfl_predictions_total",
        "streamfl_embeddings_total",
        "streamfl_staleness_mean",
        "streamfl_staleness_largest",
        "streamfl_requests_total",
        "streamfl_entities",
        "streamfl_waiting_samples",
        "streamfl_forgotten_entities_total",
        "streamfl_privacy_mu",
        "streamfl_privacy_epsilon",
        "streamfl_privacy_budget_mu",
        "streamfl_dead_letters_total",
        "streamfl_consumer_lag_records",
        "streamfl_refused_steps_total",
    }


def test_vertical_queries_find_what_members_serve(tmp_path: Path) -> None:
    """Protects the vertical overview from staying empty: members of the tutorial, with noise and without, serve each series.

    They learn from one entity: accuracy and loss are there only after a label of one that was predicted.
    """
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "vertical.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "secret").write_bytes(bytes(range(32)))
    (tmp_path / "secret").chmod(0o600)
    noise = {"embedding_norm": 1.0, "embedding_noise": 1.0, "secret_file": str(tmp_path / "secret")}
    privacy = [noise, {**noise, "gradient_norm": 1.0, "gradient_noise": 1.0, "budget_mu": 9.0}, {}]
    bus, workers = MemoryBus(), []
    for number, (block, section) in enumerate(zip(blocks, privacy, strict=True)):
        (tmp_path / f"{number}.toml").write_text(block, encoding="utf-8")
        workers.append(joined(tmp_path / f"{number}.toml", {"privacy": section}, bus))
    for topic, content in (
        ("accounts", {"age": 1.0, "income": 1.0, "debts": 1.0}),
        ("baskets", {"visits": 1.0, "returns": 1.0}),
        ("outcomes", {"defaulted": 1}),
    ):
        bus.write([Outgoing(topic, b"ann", json.dumps(content).encode()), Outgoing(topic, b"ann", b"no record")])
        for worker in workers * 3:
            worker.step(0.0)
    served: Metrics = {}
    for worker in workers:
        for name, (kind, labels) in served_by(worker).items():
            served[name] = kind, labels | served.get(name, ("", set()))[1]
        worker.close()
    names = documented(vertical=True)
    # The square loss alone has it.
    assert names.keys() - served.keys() == {"streamfl_mse_windowed"}
    assert {name: names[name][0] for name in served} == {name: kind for name, (kind, _) in served.items()}
    # Of a table, which these roles have none of, nothing is served but the name.
    assert {name for name, (_, labels) in served.items() if names[name][1] != labels} == {"streamfl_table_rejections_total"}
    overview = json.loads((ROOT / "dashboards" / "vertical.json").read_text(encoding="utf-8"))
    for expression in expressions(overview):
        for series in USED.findall(expression):
            assert series in served, expression


def test_documented_metrics_have_no_label_per_client() -> None:
    """Protects Prometheus' memory: a label per client, or per entity, grows without bound."""
    used = {label for names in (documented(), documented(vertical=True)) for _, labels in names.values() for label in labels}
    assert used == {"reason", "topic", "partition", "model"}
