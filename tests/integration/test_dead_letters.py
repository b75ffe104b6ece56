"""Dead letters on a real broker: refused, corrected, and replayed by processes that are killed or run two at
once."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import uuid
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from broker import Broker
from kafka import IsolationLevel, KafkaAdminClient, OffsetSpec, TopicPartition
from streamfl_process import start_streamfl

from streamfl.runtime.bus import Bus, Outgoing, connect

pytestmark = pytest.mark.broker

CONFIG = """
[federation]
name = "{name}"
clients = 50
[bus]
url = "{url}"
[role]
kind = "pofmkl-client"
[samples]
topic = "{name}.readings"
client = "device"
sample_id = "id"
features = ["{feature}"]
[learning]
preset = "paper"
features_per_kernel = 4
"""
SAMPLES = 2_000
PATIENCE = 120.0


class Plant:
    """A federation on the broker and its processes."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        self.name = f"plant-{uuid.uuid4().hex[:8]}"
        self._url = broker.url
        self._admin = KafkaAdminClient(bootstrap_servers=broker.address)
        self._config = folder / "client.toml"
        self._log = folder / "log"
        self._processes: list[subprocess.Popen[str]] = []

    def configure(self, feature: str) -> None:
        self._config.write_text(CONFIG.format(name=self.name, url=self._url, feature=feature))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command, *options = arguments
        with self._log.open("ab") as log:
            process = start_streamfl(
                command,
                self._config,
                *options,
                stdout=subprocess.PIPE if command == "dead-letters" else log,
                stderr=log,
                text=True,
            )
        self._processes.append(process)
        return process

    def finish(self, process: subprocess.Popen[str]) -> str:
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, self.said()
        return out or ""

    def stop(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, self.said()

    def end(self) -> None:
        self._admin.close()
        for process in self._processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def wait(self, bus: Bus, topic: str, count: int) -> list[bytes]:
        """At least ``count`` values of ``<name>.<topic>``."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            found = [record.value or b"" for record in bus.read(f"{self.name}.{topic}")]
            if len(found) >= count:
                return found
            time.sleep(0.2)
        pytest.fail(f"{len(found)} of {count} records in {topic}; the processes said:\n{self.said()}")

    def end_of(self, topic: str) -> int:
        """The end of the committed records of ``<name>.<topic>``, added up over its partitions."""
        (found,) = self._admin.describe_topics([f"{self.name}.{topic}"])
        places = {
            TopicPartition(found["name"], one["partition_index"]): OffsetSpec.LATEST
            for one in found["partitions"]
        }
        ends = self._admin.list_partition_offsets(places, isolation_level=IsolationLevel.READ_COMMITTED)
        return sum(end.offset for end in ends.values())

    def wait_for_end(self, topic: str, end: int) -> None:
        """Wait until the topic has grown to this end, which is much faster than reading all of it."""
        deadline = time.monotonic() + PATIENCE
        while self.end_of(topic) < end:
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.01)

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-5000:]


def test_refused_samples_are_predicted_once_after_a_correction(tmp_path: Path, broker: Broker) -> None:
    """Protects exactly-once over the whole way back: a killed replay, or two at once, lose and double no
    sample."""
    plant = Plant(tmp_path, broker)
    plant.configure("temprature")
    try:
        plant.finish(plant.start("topics", "--create-inputs"))
        with closing(connect(broker.url)) as bus:
            bus.write(
                [
                    Outgoing(
                        f"{plant.name}.readings",
                        b"device-%d" % (number % 50),
                        json.dumps(
                            {"device": f"device-{number % 50}", "id": number, "temperature": number / SAMPLES}
                        ).encode(),
                        headers=(("trace", b"%d" % number),),
                    )
                    for number in range(SAMPLES)
                ]
            )
            worker = plant.start("run")
            assert len(plant.wait(bus, "dead-letters", SAMPLES)) == SAMPLES
            plant.stop(worker)
            lines = plant.finish(
                plant.start("dead-letters", "--format", "json", "--limit", str(2 * SAMPLES))
            ).splitlines()
            assert len(lines) == SAMPLES
            assert {json.loads(line)["reason"] for line in lines} == {"missing_field"}

            plant.configure("temperature")
            killed = 0
            for portion in (1, 501):
                # A transaction holds 500 records: the process is killed between two transactions or within
                # one.
                before = plant.end_of("readings")
                replay = plant.start("dead-letters", "--replay", "--reason", "missing_field")
                plant.wait_for_end("readings", before + portion)
                replay.kill()
                killed += replay.wait() == -signal.SIGKILL
            assert killed >= 1
            both = [plant.start("dead-letters", "--replay", "--format", "json") for _ in range(2)]
            for replay in both:
                plant.finish(replay)
            # The letters that one replay left to the other, which may have ended before it could take them.
            plant.finish(plant.start("dead-letters", "--replay"))
            assert (
                json.loads(plant.finish(plant.start("dead-letters", "--replay", "--format", "json")))[
                    "replayed"
                ]
                == 0
            )

            worker = plant.start("run")
            plant.wait(bus, "predictions", SAMPLES)
            plant.stop(worker)
            predicted = Counter(
                json.loads(value)["sample"] for value in plant.wait(bus, "predictions", SAMPLES)
            )
            assert predicted == {str(number): 1 for number in range(SAMPLES)}
            homes: dict[bytes | None, set[int]] = {}
            again = []
            for record in bus.read(f"{plant.name}.readings"):
                homes.setdefault(record.key, set()).add(record.partition)
                if record.headers[-1][0] == "replayed_from":
                    assert record.headers[0] == ("trace", str(json.loads(record.value or b"")["id"]).encode())
                    again.append(record.headers[-1][1])
            assert len(again) == len(set(again)) == SAMPLES
            assert {len(partitions) for partitions in homes.values()} == {1}
    finally:
        plant.end()
