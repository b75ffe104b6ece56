"""Builds kustomize overlays, and validates them with strict schemas of Kubernetes, KEDA and the Prometheus
operator."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import jsonschema_rs
import kubernetes_validate
import yaml

__all__ = [
    "KEDA",
    "OVERLAYS",
    "built",
    "go_module",
    "mistakes",
    "of_kind",
    "patched",
    "pod_environment",
    "pods",
    "walk",
]

KUBERNETES = Path(__file__).resolve().parents[1] / "deploy" / "kubernetes"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
KEDA = "github.com/kedacore/keda/v2@v2.20.2"
OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
KUSTOMIZE = "sigs.k8s.io/kustomize/kustomize/v5@v5.7.1"
# Where custom resources are defined, by the end of their API group.
DESCRIBED = {
    "keda.sh": (KEDA, "config/crd/bases"),
    "monitoring.coreos.com": (OPERATOR, "example/prometheus-operator-crd"),
}
Manifest = dict[str, Any]


@functools.cache
def built(overlay: str) -> tuple[Manifest, ...]:
    """The manifests of an overlay, built by kubectl, or by kustomize if there is no kubectl."""
    return _kustomized(KUBERNETES / "overlays" / overlay)


def patched(overlay: str, more: Manifest, folder: Path) -> tuple[Manifest, ...]:
    """The manifests of a user's overlay on top of this one. more: its further files. folder: where it is
    written."""
    # kustomize refuses absolute paths.
    base = os.path.relpath(KUBERNETES / "overlays" / overlay, folder.resolve())
    (folder / "kustomization.yaml").write_text(
        yaml.safe_dump({"resources": [base], **more}), encoding="utf-8"
    )
    return _kustomized(folder)


def _kustomized(folder: Path) -> tuple[Manifest, ...]:
    program = ["kubectl", "kustomize"] if shutil.which("kubectl") else ["go", "run", KUSTOMIZE, "build"]
    done = subprocess.run([*program, str(folder)], capture_output=True, text=True)
    if done.returncode or "deprecated" in done.stderr:
        raise RuntimeError(done.stderr)
    return tuple(yaml.safe_load_all(done.stdout))


def of_kind(manifests: tuple[Manifest, ...], kind: str) -> dict[str, Manifest]:
    """The manifests of one kind, by name."""
    return {one["metadata"]["name"]: one for one in manifests if one["kind"] == kind}


def pods(manifests: tuple[Manifest, ...]) -> dict[str, Manifest]:
    """The pod templates of streamfl's StatefulSets, by name."""
    found = {name: one["spec"]["template"] for name, one in of_kind(manifests, "StatefulSet").items()}
    return {
        name: one
        for name, one in found.items()
        if one["metadata"]["labels"]["app.kubernetes.io/name"] == "streamfl"
    }


def pod_environment(manifests: tuple[Manifest, ...], name: str, ordinal: int = 0) -> dict[str, str]:
    """The environment of a pod of a StatefulSet. A value from a secret is shown as the secret's name."""
    [worker] = pods(manifests)[name]["spec"]["containers"]
    found: dict[str, str] = {}
    for source in worker.get("envFrom", []):
        found |= of_kind(manifests, "ConfigMap")[source["configMapRef"]["name"]]["data"]
    for entry in worker["env"]:
        given = entry.get("valueFrom", {})
        if "fieldRef" in given:
            assert given["fieldRef"]["fieldPath"] == "metadata.name"
        found[entry["name"]] = entry.get("value") or (
            f"{name}-{ordinal}" if "fieldRef" in given else given["secretKeyRef"]["name"]
        )
    return found


def mistakes(manifest: Manifest) -> list[str]:
    """Errors of a manifest by its kind's strict schema: unknown keys and wrong types."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    described = next((found for end, found in DESCRIBED.items() if group.endswith(end)), None)
    if described is None:
        try:
            kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
        except kubernetes_validate.ValidationError as error:
            return [f"{'.'.join(map(str, error.path))}: {error.message}"]
        return []
    module, folder = described
    schema = _custom(go_module(module) / folder, manifest["kind"], version)
    return [
        f"{error.instance_path}: {error.message}"
        for error in jsonschema_rs.validator_for(schema).iter_errors(manifest)
    ]


@functools.cache
def go_module(module: str) -> Path:
    """The folder of a Go module, downloaded if necessary."""
    done = subprocess.run(["go", "mod", "download", "-json", module], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr + done.stdout)
    return Path(json.loads(done.stdout)["Dir"])


@functools.cache
def _custom(folder: Path, kind: str, version: str) -> Mapping[str, Any]:
    # The file's name is the group and the plural.
    [path] = folder.glob(f"*_{kind.lower()}s.yaml")
    described = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]
    found = next(one for one in described["versions"] if one["name"] == version)
    return cast(Mapping[str, Any], _strict(found["schema"]["openAPIV3Schema"]))


def _strict(schema: Any) -> Any:
    # A cluster drops unknown keys; here they are errors. The metadata belong to Kubernetes.
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _strict(one) for name, one in schema.items()}
    if isinstance(found.get("properties"), dict) and not found.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
        if set(found["properties"]) >= {"apiVersion", "kind", "metadata"}:
            found["properties"]["metadata"] = {"type": "object"}
    return found


def walk(value: Any) -> Iterator[Any]:
    """A value and everything in it."""
    yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(one)
