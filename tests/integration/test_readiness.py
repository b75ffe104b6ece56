"""Processes on a real broker: ready while they serve, red with the reason otherwise, and an exit code when
waiting cannot help."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from broker import Broker
from plants import Plant, eventually
from streamfl_process import start_streamfl


@pytest.fixture(name="plant", params=["kafka", "kafka+librdkafka"])
def _plant(request: pytest.FixtureRequest, tmp_path: Path, broker: Broker) -> Iterator[Plant]:
    plant = Plant(tmp_path, broker, request.param)
    yield plant
    plant.stop()


def test_a_deleted_input_turns_red_and_ends_with_a_number(plant: Plant) -> None:
    """Protects against a worker that stays green on a deleted topic: red with the topic's name, then exit
    code 2.

    Also protects the log: sixty refused records are one line with place, reason and remedy, and idle workers
    log progress."""
    process = plant.start()
    eventually(process, lambda: process.page("readyz") == (200, "ok\n"))
    plant.write(60, 0, b"{")
    eventually(process, lambda: any(line.get("dead_letters") == 60 for line in process.lines()))
    refused = [line for line in process.lines() if line["event"] == "a record was refused"]
    assert [(line["record"], line["reason"]) for line in refused] == [
        (f"{plant.name}.readings-0-0", "malformed")
    ]
    assert "streamfl dead-letters CONFIG" in str(refused[0]["remedy"])
    told = len([line for line in process.lines() if line["event"] == "progress"])
    eventually(
        process, lambda: len([line for line in process.lines() if line["event"] == "progress"]) > told + 1
    )
    plant.delete("readings")
    seen = set[str]()

    def red() -> bool:
        seen.add(process.page("readyz")[1])
        return process.process.poll() is not None

    eventually(process, red)
    assert process.process.returncode == 2, process.log()
    assert any(
        re.search(f"^topics: topic '{plant.name}.readings' does not exist", page, re.M) for page in seen
    ), seen
    assert f"{plant.name}.readings" in process.log().splitlines()[-1]


def test_a_worker_too_many_is_a_ready_standby_and_no_server_is_not_ready(
    tmp_path: Path, broker: Broker
) -> None:
    """Protects rollouts, which wait for every pod, and readers of predictions, which stop when no model
    comes."""
    plant = Plant(tmp_path, broker, "kafka", partitions=1)
    with ExitStack() as stack:
        stack.callback(plant.stop)
        workers = [plant.start() for _ in range(2)]

        def settled() -> bool:
            pages = [one.page("readyz") for one in workers]
            return (
                all(code == 200 for code, _ in pages)
                and sum(text.startswith("ok, standby") for _, text in pages) == 1
            )

        eventually(workers[0], settled)

        def without_a_model() -> bool:
            # A client that stops sending is not waited for.
            plant.write(1, 0)
            pages = [one.page("readyz") for one in workers]
            return sum(code == 503 and "role: no server answers" in text for code, text in pages) == 1

        eventually(workers[0], without_a_model)
        waiting = next(one for one in workers if one.page("readyz")[0] == 503)
        code, text = waiting.page("healthz")
        assert code == 200
        assert "no server answers" in text


@pytest.mark.parametrize("plant", ["kafka"], indirect=True)
def test_an_output_that_was_deleted_is_told_as_well(plant: Plant) -> None:
    """Protects the reader of predictions: a worker that cannot write them ends instead of trying for ever."""
    process = plant.start()
    eventually(process, lambda: process.page("readyz")[0] == 200)
    plant.delete("predictions")
    plant.write(1, 0)
    eventually(process, lambda: process.process.poll() is not None)
    assert process.process.returncode == 2, process.log()
    assert f"{plant.name}.predictions" in process.log()


def test_a_signal_while_the_cluster_is_looked_for_ends_at_once(tmp_path: Path) -> None:
    """Protects an orchestrator: nothing is open before the first poll, so the process ends at once and
    silently."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
    configuration = tmp_path / "server.toml"
    configuration.write_text(
        f'[federation]\nname = "f"\nclients = 2\n[bus]\nurl = "kafka://127.0.0.1:{port}"\n[role]\nkind = '
        '"pofmkl-server"\n'
    )
    process = start_streamfl("run", configuration, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = process.stderr.readline()
        process.terminate()
        said += process.communicate(timeout=20)[1]
    finally:
        process.kill()
    assert (process.returncode, "stopped before it began" in said) == (0, True), said
