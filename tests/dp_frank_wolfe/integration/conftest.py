"""Federations on a real broker, which end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker import Broker
from dp_frank_wolfe.broker_federation import Federation


@pytest.fixture(name="make_federation")
def _make_federation(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Federation]]:
    """Of a test, with the scheme, estimator and serving that it names."""
    made: list[Federation] = []

    def make(**given: str) -> Federation:
        made.append(Federation(tmp_path, broker, monkeypatch, capsys, **given))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture(name="federation")
def _federation(make_federation: Callable[..., Federation]) -> Federation:
    return make_federation()
