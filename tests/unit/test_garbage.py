"""What lives long is kept out of full garbage collections, and what has died is still found."""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamfl.cli.run import run
from streamfl.runtime.garbage import long_lived_set_aside
from streamfl.runtime.worker import Worker


class _Cycle:
    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def _no_other_collection() -> Iterator[None]:
    """Full collections come only where a test asks for them."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_what_survived_is_not_looked_at_again() -> None:
    """Protects the time of a step: with a million clients each full collection would stop it for seconds."""
    with long_lived_set_aside():
        gc.collect()
        aside = gc.get_freeze_count()
        assert aside > 10_000
        assert len(gc.get_objects(2)) < aside / 100
        kept = [[] for _ in range(1_000)]
        gc.collect()
        assert gc.get_freeze_count() > aside + len(kept) / 2
    assert gc.get_freeze_count() == 0
    assert len(gc.get_objects(2)) > aside / 2


def test_new_garbage_is_still_found() -> None:
    """Protects memory: most cycles die young."""
    with long_lived_set_aside():
        gc.collect()
        one = weakref.ref(_Cycle())
        assert one() is not None
        gc.collect()
        assert one() is None


def test_what_died_aside_is_found_in_the_end() -> None:
    """Protects memory: a connection that lived for hours and dies with a cycle may not stay until the process
    ends."""
    with long_lived_set_aside():
        held = _Cycle()
        one = weakref.ref(held)
        gc.collect()
        known = gc.get_freeze_count()
        del held
        gc.collect()
        assert one() is not None
        added = [[] for _ in range(known + 1_000)]
        # The first sets aside what was added, and that is enough for the second to look at all.
        gc.collect()
        gc.collect()
        assert one() is None
        assert len(added) > known


def test_a_worker_process_sets_it_aside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Protects what users run: the rule holds while a worker serves, and for no longer."""
    file, aside = tmp_path / "member.toml", []
    file.write_text(
        """
        federation = { name = "aside", clients = 1, features = 1 }
        bus = { url = "memory://" }
        role = { kind = "pofmkl-server" }
        metrics = { port = 0 }
        """
    )

    def serves(worker: Worker, stop: threading.Event) -> None:
        gc.collect()
        aside.append(gc.get_freeze_count())

    monkeypatch.setattr(Worker, "run", serves)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr("streamfl.cli.run.wrong_topics", lambda configured, bus: [])
    run(file)
    assert aside[0] > 10_000
    assert gc.get_freeze_count() == 0
