"""``streamfl rekey`` on a real broker: killed again and again, it writes every sample once, to the partition
of Kafka's partitioner.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
import uuid
from collections import Counter
from contextlib import closing
from pathlib import Path

from broker import Broker
from streamfl_process import start_streamfl

from streamfl.configuration.settings import load_settings
from streamfl.contract.channels import TopicSpec
from streamfl.pofmkl.config import PofmklSettings
from streamfl.runtime.bus import Bus, Outgoing, connect
from streamfl.runtime.kinds import build_worker

SITES = ("north", "south", "east", "west", "centre")
SPANS = 20
CONFIGURATION = """
[federation]
name = "{name}"
clients = 5
[bus]
url = "{url}"
commit_interval_ms = 20
max_poll_records = 5
[role]
kind = "pofmkl-client"
[samples]
topic = "{name}-by-site"
client = "site"
sample_id = "span"
features = ["temp", "hum"]
label = "load"
[samples.rekey]
topic = "{name}-readings"
[samples.assemble]
seconds = 10
time = "ts"
time_unit = "s"
name = "sensor"
value = "value"
[learning]
features_per_kernel = 4
"""


def command(*arguments: object) -> subprocess.Popen[bytes]:
    return start_streamfl(*arguments)


def written(bus: Bus, topic: str) -> list[tuple[str, str, int]]:
    """The client, span and partition of each sample."""
    found = []
    for record in bus.read(topic):
        content = json.loads(record.value or b"")
        assert content.keys() == {"site", "span", "ts", "temp", "hum", "load"}
        assert record.key == content["site"].encode()
        assert content["temp"] == content["hum"] + 1 == content["load"] + 2, "of one span and site"
        found.append((content["site"], content["span"], record.partition))
    return found


def test_one_sensor_a_record_keyed_by_sensor_becomes_samples_and_predictions(
    broker: Broker, tmp_path: Path
) -> None:
    """Protects samples from a killed worker: each is written once and predicted once, with its time and its
    trace."""
    name = f"plant-{uuid.uuid4().hex[:8]}"
    config = tmp_path / "client.toml"
    config.write_text(CONFIGURATION.format(name=name, url=broker.url))
    with closing(connect(broker.url)) as bus:
        bus.create([TopicSpec(f"{name}-readings", 3, compacted=False)])
        assert command("topics", config, "--create").wait(60) == 0
        assert command("topics", config, "--create-inputs", "--partitions", "2").wait(60) == 0
        readings = []
        for number in range(SPANS * len(SITES)):
            span, site = number // len(SITES), SITES[number % len(SITES)]
            for offset, sensor in enumerate(("load", "hum", "temp", "pressure")):
                content = {
                    "site": site,
                    "sensor": sensor,
                    "value": span + 0.1 * len(site) + offset,
                    "ts": 10 * span + offset,
                }
                value, headers = json.dumps(content).encode(), (("traceparent", f"{site}-{span}".encode()),)
                readings.append(Outgoing(f"{name}-readings", sensor.encode(), value, None, headers))
        bus.write(readings)
        wanted = len(SITES) * SPANS
        deadline = time.monotonic() + 120
        lives = 0
        while len(written(bus, f"{name}-by-site")) < wanted:
            assert time.monotonic() < deadline
            process, lives = command("rekey", config), lives + 1
            before = len(written(bus, f"{name}-by-site"))
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.3)
                now = len(written(bus, f"{name}-by-site"))
                if now == wanted or now > before + wanted // 3:
                    break
            process.send_signal(signal.SIGKILL)
            process.wait()
        found = written(bus, f"{name}-by-site")
        assert Counter((site, span) for site, span, _ in found) == {
            (site, str(10 * span)): 1 for site in SITES for span in range(SPANS)
        }
        partitions = bus.describe([f"{name}-by-site"])[f"{name}-by-site"].partitions
        assert all(place == bus.partition_of(site.encode(), partitions) for site, _, place in found)
        assert lives > 1
        worker = build_worker(load_settings(config, PofmklSettings), bus)
        predictions: list[dict[str, bytes]] = []
        while len(predictions) < wanted:
            assert time.monotonic() < deadline
            worker.step(0.2)
            predictions = [dict(record.headers) for record in bus.read(f"{name}.predictions")]
        worker.close()
        assert {int(headers["streamfl.time"]) % 10_000 for headers in predictions} <= {0, 1000, 2000, 3000}
        assert len({headers["traceparent"] for headers in predictions}) == wanted
        assert list(bus.read(f"{name}.dead-letters")) == []
