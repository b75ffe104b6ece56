"""The systemd unit agrees with the program. `make check-deploy` runs systemd's own checks."""

from __future__ import annotations

import configparser
import json
from pathlib import Path

from image import stages

from streamfl.cli.run import LEAVE_SECONDS

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "streamfl@.service"


def service() -> configparser.SectionProxy:
    parsed = configparser.ConfigParser(strict=False, delimiters=("=",), interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read_string(UNIT.read_text(encoding="utf-8"))
    return parsed["Service"]


def test_it_runs_the_program_where_the_image_has_it() -> None:
    """Protects the common installation: the unit finds a tree that is copied from the image, or made by its
    steps."""
    final = dict(stages()[-1])
    entry = json.loads(final["ENTRYPOINT"])
    assert service()["ExecStart"].startswith(f"/opt/streamfl/bin/{entry[0]} run /etc/streamfl/%i.toml")


def test_a_worker_has_time_to_leave() -> None:
    """Protects others from waiting for the transaction of a worker that was killed during its exit."""
    assert float(service()["TimeoutStopSec"]) > LEAVE_SECONDS + 10
    assert "KillSignal" not in service()


# Rights that a worker gives up, according to docs/deploy.md, so that none of them disappears unnoticed.
GIVEN_UP = {
    "DynamicUser": "yes",
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "AmbientCapabilities": "",
    "UMask": "0077",
    "DevicePolicy": "closed",
    "LockPersonality": "yes",
    "MemoryDenyWriteExecute": "yes",
    "PrivateDevices": "yes",
    "PrivateMounts": "yes",
    "PrivateTmp": "yes",
    "PrivateUsers": "yes",
    "ProtectClock": "yes",
    "ProtectControlGroups": "yes",
    "ProtectHome": "yes",
    "ProtectHostname": "yes",
    "ProtectKernelLogs": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectProc": "invisible",
    "ProtectSystem": "strict",
    "RemoveIPC": "yes",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    "RestrictNamespaces": "yes",
    "RestrictRealtime": "yes",
    "RestrictSUIDSGID": "yes",
    "SystemCallArchitectures": "native",
    "SystemCallFilter": "~@privileged @resources",
}


def test_a_worker_that_was_taken_over_can_do_little() -> None:
    """Protects the machine: systemd accepts a unit without any of these lines, and a worker works without
    them."""
    assert {name: service().get(name) for name in GIVEN_UP} == GIVEN_UP
    # The line above removes calls from this set.
    assert "\nSystemCallFilter=@system-service\n" in UNIT.read_text(encoding="utf-8")


def test_it_starts_without_secrets_and_with_enough_memory() -> None:
    """Protects the first start: an optional file may be missing, and there is more memory than an idle worker
    needs."""
    assert service()["EnvironmentFile"] == "-/etc/streamfl/%i.env"
    limits = {name: service()[name] for name in ("MemoryMax", "TasksMax")}
    page = (UNIT.parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert all(f"`{name}={value}`" in page for name, value in limits.items())
    number, unit = limits["MemoryMax"][:-1], limits["MemoryMax"][-1]
    assert int(number) * {"M": 2**20, "G": 2**30}[unit] >= 512 * 2**20
    assert int(limits["TasksMax"]) >= 64


def test_it_starts_again_for_ever() -> None:
    """Protects a worker whose cluster is unreachable for a night: by default systemd gives up after five
    starts."""
    assert service()["Restart"] == "on-failure"
    assert "StartLimitIntervalSec=0" in UNIT.read_text(encoding="utf-8")
