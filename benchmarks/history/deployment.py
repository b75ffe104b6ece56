"""A federation of worker processes as a user sets it up: files by ``init``, topics by ``topics``, records by
``replay``."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.history.tables import CLIENT, LABEL
from benchmarks.processes import Processes
from streamfl.runtime.bus import connect

NAME = "plant"
LOOK_SECONDS = 0.25


class Predicted(msgspec.Struct):
    """What is read of a prediction. ``prediction`` is None where it is too large for JSON."""

    client: str
    prediction: float | None
    model_version: int
    label: float | None
    at: float = 0.0


class Deployment(Processes):
    """One federation on one bus, in a folder of its own.

    settings: keys as ``init --set`` takes them.
    """

    def __init__(self, folder: Path, table: Path, url: str, settings: Sequence[str], seed: int) -> None:
        super().__init__(folder)
        self._table = table
        self._bus = connect(url)
        self._read: dict[int, int] = {}
        self.predictions: list[Predicted] = []
        named = f"--federation {NAME} --client {CLIENT} --label {LABEL}"
        common = ["--from-file", str(table), "--url", url, *named.split()]
        for setting in (f"federation.seed={seed}", *settings):
            common += ["--set", setting]
        self.command("init", "client.toml", *common)
        self.command("init", "server.toml", *common, "--role", "pofmkl-server")
        self.command("topics", "client.toml", "--create-inputs", "--partitions", "4")
        self.command("topics", "server.toml", "--create")

    def write(self) -> None:
        """Write the table's rows to the topic, as fast as they go."""
        self.command("replay", "client.toml", "--data", str(self._table))

    def writing(self, rate: float) -> subprocess.Popen[bytes]:
        """A process that writes so many rows a second."""
        return self.running("replay", "client.toml", "--data", str(self._table), "--rate", str(rate))

    def look(self) -> int:
        """Read the predictions that came since; how many there are by now. RuntimeError if a worker has
        ended."""
        self.check()
        topic = f"{NAME}.predictions"
        for partition in range(self._bus.describe([topic])[topic].partitions):
            for record in self._bus.read_from(topic, partition, self._read.get(partition, 0)):
                self._read[partition] = record.offset + 1
                found = msgspec.json.decode(record.value or b"", type=Predicted)
                found.at = record.timestamp
                self.predictions.append(found)
        return len(self.predictions)

    def close(self) -> None:
        """End every worker."""
        super().close()
        self._bus.close()
