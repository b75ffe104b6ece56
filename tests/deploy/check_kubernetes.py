"""The overlays for Kubernetes, built by kustomize: schemas, references, and the pods' settings."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from overlays import KEDA, OVERLAYS, built, go_module, mistakes, of_kind, pod_environment, pods, walk

from streamfl.cli.run import LEAVE_SECONDS
from streamfl.configuration.settings import RoleSettings, load_kind, load_settings
from streamfl.runtime.kinds import find_kind


def settings_of(overlay: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> RoleSettings:
    """The settings of a StatefulSet's first pod: its file with its environment."""
    manifests = built(overlay)
    for variable in [one for one in os.environ if one.startswith("STREAMFL_")]:
        monkeypatch.delenv(variable)
    for variable, value in pod_environment(manifests, name).items():
        monkeypatch.setenv(variable, value)
    template = pods(manifests)[name]["spec"]
    [volume] = [one for one in template["volumes"] if one["name"] == "role"]
    file = folder / f"{name}.toml"
    file.write_text(of_kind(manifests, "ConfigMap")[volume["configMap"]["name"]]["data"]["role.toml"])
    settings: RoleSettings = load_settings(file, find_kind(load_kind(file)).settings)
    for variable in pod_environment(manifests, name):
        monkeypatch.delenv(variable)
    return settings


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_manifest_follows_its_schema(overlay: str) -> None:
    """Protects `kubectl apply`: a key in the wrong place is refused or silently dropped."""
    assert len(built(overlay)) > 6
    for manifest in built(overlay):
        assert mistakes(manifest) == [], (manifest["kind"], manifest["metadata"]["name"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_workers_start_with_what_their_pods_have(
    overlay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the first start, and learning: file and environment give valid settings, and the members'
    settings agree."""
    found = {name: settings_of(overlay, name, tmp_path, monkeypatch) for name in pods(built(overlay))}
    assert len(found) >= 2
    assert len({settings.federation.model_dump_json() for settings in found.values()}) == 1
    for name, settings in found.items():
        [worker] = pods(built(overlay))[name]["spec"]["containers"]
        assert settings.metrics.port == worker["ports"][0]["containerPort"]
        assert settings.metrics.host == "0.0.0.0"
        assert settings.bus.options["group_instance_id"] == f"{name}-0"
        assert worker["args"] == ["run", f"{worker['volumeMounts'][-2]['mountPath']}/role.toml"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_have_no_rights_to_lose(overlay: str) -> None:
    """Protects the cluster: the profile `restricted`, a read-only root file system, and no service account
    token."""
    for name, template in pods(built(overlay)).items():
        pod = template["spec"]
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod), name
        assert all({"configMap", "secret", "emptyDir"} & set(volume) for volume in pod["volumes"]), name
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert "memory" in container["resources"]["limits"]
    for namespace in of_kind(built(overlay), "Namespace").values():
        assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_worker_has_time_to_leave(overlay: str) -> None:
    """Protects others from waiting: a killed worker leaves an open transaction."""
    for template in pods(built(overlay)).values():
        assert template["spec"]["terminationGracePeriodSeconds"] > LEAVE_SECONDS + 10


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_ask_what_the_worker_serves(overlay: str) -> None:
    """Protects a worker that restores for minutes from being killed: only a stalled loop fails the probe."""
    for template in pods(built(overlay)).values():
        [worker] = template["spec"]["containers"]
        paths = {name: worker[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
        assert {name: one["path"] for name, one in paths.items()} == {
            "startup": "/healthz",
            "liveness": "/healthz",
            "readiness": "/readyz",
        }
        assert {one["port"] for one in paths.values()} == {worker["ports"][0]["name"]} == {"metrics"}
        # Libraries load for seconds before the port is open, and a loop may stall while a broker is replaced.
        for name in ("startup", "liveness"):
            assert (
                worker[f"{name}Probe"]["periodSeconds"] * worker[f"{name}Probe"]["failureThreshold"] >= 60
            ), name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_everything_that_is_referred_to_is_there(overlay: str) -> None:
    """Protects each pod's start and each policy's effect: a selector without matches silently protects
    nothing."""
    manifests = built(overlay)
    labels = {name: template["metadata"]["labels"] for name, template in pods(manifests).items()}
    for kind, selector in (
        ("PodDisruptionBudget", "selector"),
        ("NetworkPolicy", "podSelector"),
        ("Service", "selector"),
    ):
        chosen = [_chosen(one["spec"][selector], labels) for one in of_kind(manifests, kind).values()]
        # Only a broker also has a service.
        assert sorted(name for names in chosen for name in names) == sorted(labels), kind
    for name, template in pods(manifests).items():
        owner = of_kind(manifests, "StatefulSet")[name]["spec"]
        assert owner["serviceName"] in of_kind(manifests, "Service")
        assert template["spec"]["serviceAccountName"] in of_kind(manifests, "ServiceAccount")
        volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        for container in [*template["spec"]["containers"], *template["spec"].get("initContainers", [])]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    maps = {
        one["configMapRef"]["name"]
        for one in walk(list(manifests))
        if isinstance(one, dict) and "configMapRef" in one
    }
    assert maps <= set(of_kind(manifests, "ConfigMap"))
    assert len({one["metadata"].get("namespace") for one in manifests if one["kind"] != "Namespace"}) == 1


def _chosen(selector: Mapping[str, Any], labels: Mapping[str, Mapping[str, str]]) -> list[str]:
    wanted = selector.get("matchLabels", selector).items()
    return [name for name, own in labels.items() if wanted <= own.items()]


def test_clients_are_scaled_by_their_own_lag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the scaling: KEDA ignores unknown keys, and the lag of a wrong group is 0 for ever."""
    manifests = built("production")
    [scaled] = of_kind(manifests, "ScaledObject").values()
    target = scaled["spec"]["scaleTargetRef"]["name"]
    assert "replicas" not in of_kind(manifests, "StatefulSet")[target]["spec"]
    settings = settings_of("production", target, tmp_path, monkeypatch)
    [trigger] = scaled["spec"]["triggers"]
    given = trigger["metadata"]
    assert given["consumerGroup"] == settings.group
    assert given["topic"] == settings.model_dump()["samples"]["topic"]
    assert settings.bus.url.endswith(f"//{given['bootstrapServers']}")
    assert given["sasl"] == settings.bus.options["sasl_mechanism"].lower().replace("sha-", "sha").replace(
        "-", "_"
    )
    assert given["tls"] == "enable"
    assert settings.bus.options["security_protocol"] == "SASL_SSL"
    assert (
        1
        <= scaled["spec"]["minReplicaCount"]
        <= scaled["spec"]["fallback"]["replicas"]
        <= scaled["spec"]["maxReplicaCount"]
    )
    source = (go_module(KEDA) / "pkg" / "scalers" / "kafka_scaler.go").read_text()
    known = {name for tag in re.findall(r'keda:"name=([^,"]+)', source) for name in tag.split(";")} | {
        "sasl",
        "tls",
    }
    assert set(given) <= known, set(given) - known
    authentication = of_kind(manifests, "TriggerAuthentication")[trigger["authenticationRef"]["name"]]
    assert {one["parameter"] for one in authentication["spec"]["secretTargetRef"]} == {
        "username",
        "password",
        "ca",
    }


def test_prometheus_finds_every_worker() -> None:
    """Protects the dashboards: a monitor that selects no pod, or names another port, scrapes nothing."""
    manifests = built("production")
    [monitor] = of_kind(manifests, "PodMonitor").values()
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    for name, template in pods(manifests).items():
        assert _chosen(monitor["spec"]["selector"], {name: template["metadata"]["labels"]}) == [name]
        assert endpoint["port"] in [port["name"] for port in template["spec"]["containers"][0]["ports"]]
    assert endpoint["path"] == "/metrics"
    assert {"sourceLabels": ["__meta_kubernetes_pod_name"], "targetLabel": "instance"} in endpoint[
        "relabelings"
    ]


def test_a_mistake_is_seen() -> None:
    """Protects the checks above: the schemas of Kubernetes, KEDA and the operator each refuse an unknown
    key."""
    for kind in ("StatefulSet", "NetworkPolicy", "ScaledObject", "PodMonitor"):
        manifest = next(iter(of_kind(built("production"), kind).values()))
        assert mistakes({**manifest, "spec": {**manifest["spec"], "replica": 1}}) != [], kind
