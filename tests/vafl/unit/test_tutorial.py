"""The tutorial of vertical federations, done as its page says."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from page_commands import page_text

from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker
from streamfl.vafl.config import VaflSettings

PAGE = page_text("vertical.md", "Tutorial")
HISTORY, STREAM = 1000, 200
FIELDS = {
    "accounts": ("age", "income", "debts"),
    "baskets": ("visits", "returns"),
    "outcomes": ("defaulted",),
}


def test_its_configurations_are_valid() -> None:
    """Protects two organisations' first try: both parties' files and the coordinator's load, and agree where
    they have to."""
    settings = [
        VaflSettings(**tomllib.loads(block)) for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    ]
    assert [item.role.kind for item in settings] == ["vafl-party", "vafl-party", "vafl-coordinator"]
    assert [item.party.name for item in settings if item.party is not None] == settings[0].federation.parties
    assert settings[0].federation == settings[1].federation == settings[2].federation


@pytest.fixture(scope="module")
def customers() -> list[dict[str, float]]:
    """Who defaulted follows from all five columns, of which no party has more than three."""
    inputs = np.random.default_rng(4).normal(size=(HISTORY + STREAM, 5)).round(3)
    defaulted = (inputs @ [-0.5, -1.0, 1.5, -1.0, 1.5] > 0).astype(float)
    columns = (*FIELDS["accounts"], *FIELDS["baskets"], "defaulted")
    return [
        dict(zip(columns, (*row, label), strict=True))
        for row, label in zip(inputs.tolist(), defaulted.tolist(), strict=True)
    ]


# Customers that the shop does not know.
STRANGERS = {100, 300}


class Tutorial:
    """The three files of the page on a memory bus, the topics between them, and the time."""

    def __init__(self) -> None:
        self.files = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
        self.bus = MemoryBus()
        self.now = 1000.0
        for settings in map(read, self.files):
            topics = find_kind(settings.role.kind).topics(settings)
            known = self.bus.describe([topic.name for topic in topics])
            self.bus.create([replace(topic, partitions=1) for topic in topics if topic.name not in known])

    def start(self, files: Sequence[str]) -> list[Worker]:
        return [build_worker(read(file), self.bus, lambda: self.now) for file in files]

    def settle(self, workers: list[Worker]) -> None:
        """Until nothing has happened for longer than anybody is waited for."""
        idle = 0
        while idle < 35:
            idle = 0 if sum(worker.step(0.0) for worker in workers) else idle + 1
            self.now += idle > 0

    def write(self, topic: str, numbers: Iterable[int], customers: list[dict[str, float]]) -> None:
        rows = [
            (f"customer-{number}", {name: customers[number][name] for name in FIELDS[topic]})
            for number in numbers
        ]
        self.bus.write([Outgoing(topic, name.encode(), json.dumps(row).encode()) for name, row in rows])

    def predictions(self) -> list[dict[str, Any]]:
        return [json.loads(record.value or b"") for record in self.bus.read("credit.predictions")]


def read(file: str) -> VaflSettings:
    """As a process reads it, but with first parameters that are the same in every run."""
    content = tomllib.loads(file)
    return VaflSettings(**{**content, "learning": {**content.get("learning", {}), "seeded_start": True}})


def right(predictions: list[dict[str, Any]], customers: list[dict[str, float]]) -> float:
    """The share of the newest predictions that were right."""
    newest = {one["entity"]: one["prediction"] for one in predictions}
    return float(
        np.mean([(value > 0.5) == customers[int(name[9:])]["defaulted"] for name, value in newest.items()])
    )


def test_history_is_learnt_from_and_the_stream_goes_on_with_it(customers: list[dict[str, float]]) -> None:
    """Protects a newcomer's first try: tables written at once are learnt from customer by customer, whoever
    both know is predicted of both, and the stream that follows is predicted by what was learnt.
    """
    tutorial = Tutorial()
    workers = tutorial.start(tutorial.files)
    tutorial.write("outcomes", range(HISTORY), customers)
    tutorial.write("accounts", range(HISTORY), customers)
    tutorial.write("baskets", (number for number in range(HISTORY) if number not in STRANGERS), customers)
    tutorial.settle(workers)
    for worker in workers:
        worker.close()
    history = tutorial.predictions()
    newest = {one["entity"]: one for one in history}
    assert len(newest) == HISTORY
    assert {int(name[9:]) for name, one in newest.items() if one["embeddings"] < 2} == STRANGERS
    assert sum(one["prediction"] == 0.5 for one in newest.values()) <= 2 * 64
    assert right(history[-200:], customers) >= 0.9
    workers = tutorial.start(tutorial.files)
    for topic in ("accounts", "baskets"):
        tutorial.write(topic, range(HISTORY, HISTORY + STREAM), customers)
        tutorial.settle(workers)
    stream = tutorial.predictions()[len(history) :]
    assert len({one["entity"] for one in stream}) == STREAM
    assert not [one for one in stream if one["prediction"] == 0.5]
    assert right(stream, customers) >= 0.9
    for worker in workers:
        worker.close()
