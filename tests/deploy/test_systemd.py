"""The unit for systemd: what it says that the program has to agree with. `make check-deploy` asks systemd itself."""

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
    """Protects one installation for both: a tree that is copied out of the image, or made by its steps, is found."""
    final = dict(stages()[-1])
    entry = json.loads(final["ENTRYPOINT"])
    assert service()["ExecStart"].startswith(f"/opt/streamfl/bin/{entry[0]} run /etc/streamfl/%i.toml")


def test_a_worker_has_time_to_leave() -> None:
    """Protects others from waiting for the transaction of a worker that was killed on its way out."""
    assert float(service()["TimeoutStopSec"]) > LEAVE_SECONDS + 10
    assert "KillSignal" not in service()


def test_it_starts_again_for_ever() -> None:
    """Protects a worker whose cluster is away for a night: systemd gives up after five starts unless it is told otherwise."""
    assert service()["Restart"] == "on-failure"
    assert "StartLimitIntervalSec=0" in UNIT.read_text(encoding="utf-8")
