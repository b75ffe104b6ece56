"""The deployment files: errors that would otherwise only appear when they are started."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from image import stages
from prometheus import promtool

from streamfl.cli.run import LEAVE_SECONDS
from streamfl.configuration.settings import RoleSettings, load_kind, load_settings
from streamfl.runtime.kinds import find_kind

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CONFIGURATIONS = sorted(DEPLOY.glob("*.toml"))
COMMANDS = {"run", "check", "topics", "replay"}


def read_yaml(path: Path) -> dict[str, Any]:
    return cast(dict[str, Any], yaml.safe_load(path.read_text(encoding="utf-8")))


def compose() -> dict[str, Any]:
    return read_yaml(DEPLOY / "compose.yaml")


def services() -> dict[str, dict[str, Any]]:
    return cast(dict[str, dict[str, Any]], compose()["services"])


def own_services() -> dict[str, dict[str, Any]]:
    """The services with streamfl's own image."""
    return {name: service for name, service in services().items() if service["image"].startswith("streamfl")}


def workers() -> dict[str, str]:
    """By service: the path of each long-running worker's configuration in its container."""
    return {
        name: service["command"][1]
        for name, service in own_services().items()
        if service["command"][0] == "run"
    }


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """By path in the container: the host path or the volume."""
    return {entry.split(":")[1]: entry.split(":")[0] for entry in service.get("volumes", [])}


def load(path: Path) -> RoleSettings:
    settings: RoleSettings = load_settings(path, find_kind(load_kind(path)).settings)
    return settings


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
def test_configurations_load(path: Path) -> None:
    """Protects the first start: an obsolete key would end every worker with exit code 2."""
    assert load(path).metrics.port is not None


def test_configurations_belong_together() -> None:
    """Protects learning: another seed or size on one side gives other frequencies or steps, and no error
    anywhere."""
    federations = [load(path).federation for path in CONFIGURATIONS]
    assert len(federations) == 2
    assert federations[0] == federations[1]


def test_mounted_files_exist_and_are_read_only() -> None:
    """Protects the start: for a bind mount without a source Docker makes an empty directory owned by root."""
    volumes = set(compose()["volumes"])
    for name, service in services().items():
        for entry in service.get("volumes", []):
            source, _, options = entry.partition(":")
            if source in volumes:
                continue
            assert (DEPLOY / source).exists(), f"{name}: {source}"
            assert options.endswith(":ro"), f"{name}: {source}"


def test_commands_name_mounted_configurations() -> None:
    """Protects each worker's start: its command exists, and its container has the configuration."""
    for name, service in own_services().items():
        words = [word for part in service["command"] for word in shlex.split(part)]
        command = words[words.index("streamfl") + 1] if "streamfl" in words else words[0]
        assert command in COMMANDS, name
        named = [word for word in words if word.endswith(".toml")]
        assert named, name
        for configuration in named:
            assert (DEPLOY / mounts(service)[configuration]).suffix == ".toml", name


def test_federation_is_complete() -> None:
    """Protects the purpose of the file: a server, two clients in one group, a broker, and something to watch
    them."""
    running = sorted(Path(configuration).name for configuration in workers().values())
    assert running == ["client.toml", "client.toml", "server.toml"]
    assert {"broker", "prometheus", "grafana"} <= set(services())


def test_dependencies_exist() -> None:
    """Protects the start: Compose refuses a file that waits for a missing service."""
    for name, service in services().items():
        assert set(service.get("depends_on", [])) <= set(services()), name


def test_workers_find_the_broker() -> None:
    """Protects the connection: the broker has to advertise exactly the address in the workers'
    configurations."""
    advertised = services()["broker"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    for path in CONFIGURATIONS:
        assert load(path).bus.url.removeprefix("kafka://") in re.findall(r"//([^,]+)", advertised), path.name


def test_own_containers_have_no_rights_to_lose() -> None:
    """Protects the host: no root, no capabilities, and a read-only root file system."""
    for name, service in own_services().items():
        assert service["user"].split(":")[0] not in {"0", "root"}, name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
    assert own_services()


def test_a_worker_has_time_to_leave() -> None:
    """Protects others from waiting for the transaction of a worker that was killed during its exit."""
    for name in workers():
        grace = re.fullmatch(r"(\d+)s", services()[name]["stop_grace_period"])
        assert grace is not None, name
        assert int(grace[1]) > LEAVE_SECONDS + 3, name
        assert services()[name]["restart"] == "unless-stopped", name


def test_own_containers_can_write_to_tmp() -> None:
    """Protects the start: with a read-only root file system, libraries need a place to unpack files."""
    for name, service in own_services().items():
        assert service["tmpfs"] == ["/tmp"], name


def test_what_is_waited_for_is_there_when_the_wait_ends() -> None:
    """Protects the first start: a started container may not answer yet, and a command that ends is never
    healthy."""
    for name, service in own_services().items():
        assert service["depends_on"], name
        for other, given in service["depends_on"].items():
            ends = other in own_services() and other not in workers()
            assert given == {"condition": "service_completed_successfully" if ends else "service_healthy"}, (
                name
            )
            assert ends or other in workers() or "healthcheck" in services()[other], other


def test_no_service_is_privileged_or_open_to_the_network() -> None:
    """Protects users on a laptop: nothing here has a password, so nothing listens beyond the machine."""
    for name, service in services().items():
        assert not service.get("privileged", False), name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name}: {port}"


def test_image_does_not_run_as_root() -> None:
    """Protects users of the image alone. SIGTERM only reaches a process that was started without a shell."""
    final_stage = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").split("\nFROM ")[-1]
    user = re.search(r"^USER (\d+)", final_stage, re.MULTILINE)
    assert user is not None
    assert int(user[1]) > 0
    assert re.search(r'^ENTRYPOINT \["streamfl"\]$', final_stage, re.MULTILINE)


def test_image_is_built_from_files_that_exist() -> None:
    """Protects the build: the sources of COPY exist and are not excluded by the ignore file."""
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8")
    allowed = {line[1:] for line in ignore.splitlines() if line.startswith("!")}
    names = {name for word, rest in stages()[0] if word == "COPY" for name in rest.split()[:-1]}
    assert names
    for name in names:
        assert (ROOT / name).exists(), name
    assert names <= allowed


def test_prometheus_scrapes_every_worker() -> None:
    """Protects the dashboards: a worker that is not scraped, or at another port, is missing from them."""
    scraped = {
        target
        for job in read_yaml(DEPLOY / "prometheus.yml")["scrape_configs"]
        for static in job["static_configs"]
        for target in static["targets"]
    }
    expected = set()
    for name, configuration in workers().items():
        metrics = load(DEPLOY / mounts(services()[name])[configuration]).metrics
        assert metrics.host == "0.0.0.0", name
        expected.add(f"{name}:{metrics.port}")
    assert scraped == expected


def test_prometheus_has_the_alerts(tmp_path: Path) -> None:
    """Protects an operator who relies on the alerts: Prometheus gets the rules, and accepts the
    configuration."""
    configuration = (DEPLOY / "prometheus.yml").read_text(encoding="utf-8")
    [pattern] = read_yaml(DEPLOY / "prometheus.yml")["rule_files"]
    folder, _, names = pattern.rpartition("/")
    assert (DEPLOY / mounts(services()["prometheus"])[folder]).resolve() == ROOT / "dashboards"
    found = sorted((ROOT / "dashboards").glob(names))
    assert found
    (tmp_path / "prometheus.yml").write_text(configuration.replace(folder, str(ROOT / "dashboards")))
    checked = promtool("check", "config", str(tmp_path / "prometheus.yml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count("SUCCESS") >= len(found)


def test_health_check_asks_the_configured_port() -> None:
    """Protects `docker compose up --wait`: the image's check, which all services inherit, uses the port they
    listen on."""
    for name, configuration in workers().items():
        service = services()[name]
        assert "healthcheck" not in service, name
        port = load(DEPLOY / mounts(service)[configuration]).metrics.port
        assert f"127.0.0.1:{port}/readyz" in (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), name


def test_what_ends_has_no_health() -> None:
    """Protects `docker compose up --wait`: the image's check queries a port that a command never opens."""
    for name, service in own_services().items():
        assert ("healthcheck" in service) == (name not in workers()), name


def test_compose_follows_its_specification() -> None:
    """Protects the start: Compose ignores or refuses a key that is not in its specification."""
    program = Path(sys.executable).with_name("check-jsonschema")
    command = [program, "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_images_are_pinned_by_digest() -> None:
    """Protects later starts: a tag may move, and two `up` would differ."""
    for name, service in services().items():
        assert name in own_services() or re.search(r":v?\d[\d.]+@sha256:[0-9a-f]{64}$", service["image"]), (
            name
        )


def test_grafana_is_provisioned_with_the_dashboards() -> None:
    """Protects the first look: Grafana gets the dashboards' data source and directory."""
    provisioning = DEPLOY / "grafana" / "provisioning"
    source = read_yaml(provisioning / "datasources" / "prometheus.yml")["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    directory = read_yaml(provisioning / "dashboards" / "streamfl.yml")["providers"][0]["options"]["path"]
    grafana = services()["grafana"]
    mounted = (DEPLOY / mounts(grafana)[directory]).resolve()
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (mounted / home.relative_to(directory)).is_file()
    for path in mounted.glob("*.json"):
        variables = json.loads(path.read_text(encoding="utf-8"))["templating"]["list"]
        assert {item["current"]["value"] for item in variables if item["type"] == "datasource"} == {
            source["uid"]
        }
