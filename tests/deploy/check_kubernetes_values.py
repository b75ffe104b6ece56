"""Values in the overlays for Kubernetes that every schema accepts, but that would cut a worker off or delay
it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from image import ROOT
from overlays import KUBERNETES, OVERLAYS, Manifest, built, of_kind, patched, pod_environment, pods, walk

DOCS = ROOT / "docs"
# Kubernetes' units of memory.
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def rules(manifests: tuple[Manifest, ...], direction: str) -> list[Manifest]:
    return [
        rule for policy in of_kind(manifests, "NetworkPolicy").values() for rule in policy["spec"][direction]
    ]


def namespaces(rule: Manifest, side: str) -> list[str]:
    return [
        one["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for one in rule.get(side, [])
    ]


def lets_out(rule: Manifest, port: int) -> bool:
    return any(
        one["protocol"] == "TCP" and one["port"] <= port <= one.get("endPort", one["port"])
        for one in rule["ports"]
    )


def kafka_ports(overlay: str) -> set[int]:
    """The Kafka ports that an overlay's pods connect to."""
    urls = [pod_environment(built(overlay), name)["STREAMFL_BUS__URL"] for name in pods(built(overlay))]
    return {int(port) for url in urls for port in re.findall(r":(\d+)", url)}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_worker_reaches_kafka_and_names(overlay: str) -> None:
    """Protects the first start: if a policy lacks Kafka's port or DNS, the worker waits for ever."""
    for policy in of_kind(built(overlay), "NetworkPolicy").values():
        anywhere = [rule for rule in policy["spec"]["egress"] if "to" not in rule]
        # The clusters of deploy/security too: their listeners and clouds use other ports.
        texts = [path.read_text(encoding="utf-8") for path in (ROOT / "deploy" / "security").rglob("*.toml")]
        found = {
            int(port) for text in texts for port in re.findall(r"^url = .*:(\d+)\"$", text, re.MULTILINE)
        }
        ports = found | kafka_ports(overlay)
        assert ports >= {9092, 9093, 9094, 9095, 9098}
        for port in ports:
            assert any(lets_out(rule, port) for rule in anywhere), port
        [names] = [
            rule["ports"] for rule in policy["spec"]["egress"] if namespaces(rule, "to") == ["kube-system"]
        ]
        assert sorted((one["protocol"], one["port"]) for one in names) == [("TCP", 53), ("UDP", 53)]
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_prometheus_is_let_in(overlay: str) -> None:
    """Protects dashboards and alerts: the namespace is the page's, and the port is the metrics'."""
    said = re.findall(
        r"In: Prometheus, from the namespace `(\S+)`", (DOCS / "deploy.md").read_text(encoding="utf-8")
    )
    for policy in of_kind(built(overlay), "NetworkPolicy").values():
        [rule] = policy["spec"]["ingress"]
        assert namespaces(rule, "from") == said
        assert rule["ports"] == [{"protocol": "TCP", "port": "metrics"}]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_node_can_be_drained(overlay: str) -> None:
    """Protects every upgrade of a cluster: a disruption budget of 0 blocks a drain for ever without any
    warning."""
    for budget in of_kind(built(overlay), "PodDisruptionBudget").values():
        assert "minAvailable" not in budget["spec"]
        assert budget["spec"]["maxUnavailable"] >= 1


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_role_has_workers(overlay: str) -> None:
    """Protects the first start: 0 replicas are valid, but stop a federation."""
    manifests = built(overlay)
    objects = [one["spec"] for one in of_kind(manifests, "ScaledObject").values()]
    scaled = {one["scaleTargetRef"]["name"]: one["minReplicaCount"] for one in objects}
    for name, owner in of_kind(manifests, "StatefulSet").items():
        assert owner["spec"].get("replicas", scaled.get(name, 0)) >= 1, name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_that_comes_back_is_waited_for_and_no_other(overlay: str) -> None:
    """Protects a rolling update from a rebalance, and a dead pod's partitions from waiting for an hour."""
    said = re.findall(
        r"comes back within (\d+) seconds", " ".join((DOCS / "deploy.md").read_text(encoding="utf-8").split())
    )
    for name in pods(built(overlay)):
        session = int(pod_environment(built(overlay), name)["STREAMFL_BUS__OPTIONS__SESSION_TIMEOUT_MS"])
        assert [f"{session // 1000}"] == said
        # Longer than a restart of a worker, and allowed by a broker.
        assert 20_000 <= session <= 60_000


def bytes_of(quantity: str) -> int:
    return int(quantity[:-2]) * UNITS[quantity[-2:]]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_worker_has_the_memory_that_was_measured(overlay: str) -> None:
    """Protects the first start: a pod with less memory than an idle worker needs is killed again and
    again."""
    measured = re.findall(r"memory at rest \| (\d+) MiB", (DOCS / "deploy.md").read_text(encoding="utf-8"))
    assert len(measured) == 2
    rest = max(map(int, measured)) * 2**20
    for name, template in pods(built(overlay)).items():
        for container in template["spec"]["containers"]:
            wanted = container["resources"]
            assert bytes_of(wanted["requests"]["memory"]) >= 1.5 * rest, name
            # For caches, and a batch in progress.
            assert bytes_of(wanted["limits"]["memory"]) >= 4 * rest, name


def secrets_made() -> dict[str, set[str]]:
    """The keys of each secret that the head of production's kustomization.yaml says how to make."""
    head = (KUBERNETES / "overlays" / "production" / "kustomization.yaml").read_text(encoding="utf-8")
    made = re.findall(r"create secret generic (\S+) (.*)", head)
    return {name: set(re.findall(r"--from-(?:literal|file)=([\w.]+)", rest)) for name, rest in made}


def secrets_asked(manifests: tuple[Manifest, ...]) -> dict[str, set[str]]:
    """The keys of each secret that manifests refer to."""
    asked: dict[str, set[str]] = {}
    for one in walk(list(manifests)):
        for reference in _references(one):
            asked.setdefault(reference["name"], set()).add(reference["key"])
    return asked


def _references(value: Any) -> list[dict[str, str]]:
    if not isinstance(value, dict):
        return []
    return [*([value["secretKeyRef"]] if "secretKeyRef" in value else []), *value.get("secretTargetRef", [])]


def test_secrets_have_the_keys_that_are_asked_for() -> None:
    """Protects the first start: a pod whose secret lacks a key is never created, and waits without a log."""
    manifests = built("production")
    assert secrets_made() == secrets_asked(manifests)
    [namespace] = of_kind(manifests, "Namespace")
    head = (KUBERNETES / "overlays" / "production" / "kustomization.yaml").read_text(encoding="utf-8")
    assert head.count(f"kubectl -n {namespace} create secret") == len(secrets_made())
    for name, template in pods(manifests).items():
        given = pod_environment(manifests, name)
        [volume] = [one for one in template["spec"]["volumes"] if "secret" in one]
        [mount] = [
            one for one in template["spec"]["containers"][0]["volumeMounts"] if one["name"] == volume["name"]
        ]
        folder, _, key = given["STREAMFL_BUS__OPTIONS__SSL_CA_LOCATION"].rpartition("/")
        assert folder == mount["mountPath"]
        assert key in secrets_made()[volume["secret"]["secretName"]]


def test_the_new_group_protocol_can_be_had(tmp_path: Path) -> None:
    """Protects users of KIP-848: the page's patch removes exactly the settings that it refuses."""
    page = (DOCS / "deploy.md").read_text(encoding="utf-8")
    [patch] = re.findall(r"^```yaml\n((?:(?!^```).)*GROUP_PROTOCOL.*?)^```", page, re.MULTILINE | re.DOTALL)
    before = built("production")
    after = patched("production", yaml.safe_load(patch), tmp_path)
    for name in pods(before):
        had, has = pod_environment(before, name), pod_environment(after, name)
        assert set(had) - set(has) == {"STREAMFL_BUS__OPTIONS__SESSION_TIMEOUT_MS"}
        assert dict(has.items() - had.items()) == {"STREAMFL_BUS__OPTIONS__GROUP_PROTOCOL": "consumer"}
