"""Hashes of everything that seeded runs write, to verify that a refactoring changes no behaviour.

    python tests/frozen.py record before.json      # at the commit before
    python tests/frozen.py compare before.json     # after; exit code 1 and the names of what differs

It only uses the command line and stable interfaces, so it runs on both commits. For seeds of the fault
simulator (every system, both buses, permanent faults) it records the history and every topic's bytes. For
seeded ``streamfl simulate`` runs it records every topic, figure and traced array. Floating-point sums differ
between machines, so both runs have to be on one machine.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
FAULTS = {"": 12, "--bus sqlite": 4, "--liveness": 6}


def seeded_simulations() -> dict[str, dict[str, tuple[str, str]]]:
    """For each system with a file ``tests/<system>/frozen.py``: by name, a settings file and the options of
    ``streamfl simulate``.

    ``SECRET`` in a settings file is replaced by the path of a file with a secret.
    """
    folders = sorted(path.parent.name for path in FOLDER.glob("*/frozen.py"))
    return {name.replace("_", "-"): import_module(f"{name}.frozen").SIMULATIONS for name in folders}


def digest(*parts: object) -> str:
    """A hash of the parts' bytes, 32 hexadecimal digits."""
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        content = part if isinstance(part, bytes) else repr(part).encode()
        made.update(b"%d:" % len(content) + content)
    return made.hexdigest()


class Topics:
    """Hashes the contents of every bus of this package that is made from now on, when its run is over or its
    file is closed."""

    def __init__(self) -> None:
        from streamfl.runtime.memory_bus import MemoryBus
        from streamfl.runtime.sqlite_bus import SqliteBus

        self._buses: list[tuple[Any, set[str]]] = []
        self._closed: list[dict[str, str]] = []
        for kind in (MemoryBus, SqliteBus):
            self._follow(kind)

    def _follow(self, kind: Any) -> None:
        made, create, close = kind.__init__, kind.create, kind.close

        def init(bus: Any, *arguments: Any, **named: Any) -> None:
            self._buses.append((bus, set()))
            made(bus, *arguments, **named)

        def created(bus: Any, topics: Any) -> None:
            next(names for one, names in self._buses if one is bus).update(topic.name for topic in topics)
            create(bus, topics)

        def closed(bus: Any) -> None:
            self._note(bus)
            close(bus)

        kind.__init__, kind.create, kind.close = init, created, closed

    def _note(self, bus: Any) -> None:
        for entry in [entry for entry in self._buses if entry[0] is bus]:
            self._buses.remove(entry)
            self._closed.append(
                {name: digest(*map(self._content, bus.read(name))) for name in sorted(entry[1])}
            )

    @staticmethod
    def _content(record: Any) -> tuple[object, ...]:
        return record.partition, record.offset, record.key, record.value, record.headers

    def taken(self) -> list[dict[str, str]]:
        """Hashes by bus and topic, for all buses since the last call."""
        for bus, _ in list(self._buses):
            self._note(bus)
        found, self._closed = self._closed, []
        return found


def faults(topics: Topics) -> Iterator[tuple[str, object]]:
    """For each seed: the printed history and the topics."""
    # Earlier releases have the simulator in another package.
    place = "testing" if find_spec("streamfl.testing.faults") else "simulation"
    main = import_module(f"streamfl.{place}.faults.__main__").main
    for options, seeds in FAULTS.items():
        for system in seeded_simulations():
            for seed in range(seeds):
                sys.argv = [
                    "faults",
                    "--system",
                    system,
                    "--seed",
                    str(seed),
                    "--transcript",
                    *options.split(),
                ]
                with redirect_stdout(io.StringIO()) as out:
                    code = main()
                text = [line for line in out.getvalue().splitlines() if line]
                yield f"faults {system} {options} {seed}", [code, digest(*text), topics.taken()]


def simulations(topics: Topics) -> Iterator[tuple[str, object]]:
    """For each run: the printed figures, the traced arrays and the topics."""
    from streamfl.cli import app

    runs = {
        f"{system} {name}": run for system, own in seeded_simulations().items() for name, run in own.items()
    }
    for name, (config, options) in runs.items():
        # A member's state includes the settings it was made with, and so the path of its secret.
        folder = Path(tempfile.gettempdir(), "streamfl-frozen")
        folder.mkdir(exist_ok=True)
        try:
            secret = Path(folder, "secret")
            secret.write_text("".join(f"{number:02x}" for number in range(7, 39)) + "\n")
            secret.chmod(0o600)
            path = Path(folder, "federation.toml")
            path.write_text(config.replace("SECRET", str(secret)))
            arguments = ["simulate", str(path), *options.split(), "--trace", str(folder), "--format", "json"]
            with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as error:
                try:
                    app(arguments, standalone_mode=False)
                except Exception as failure:
                    raise RuntimeError(error.getvalue()) from failure
            figures = {key: value for key, value in json.loads(out.getvalue()).items() if key != "seconds"}
            with np.load(Path(folder, "trace.npz"), allow_pickle=False) as archive:
                arrays = {key: digest(array.shape, array.tobytes()) for key, array in archive.items()}
            yield f"simulate {name}", [figures, arrays, topics.taken()]
        finally:
            shutil.rmtree(folder)


def main() -> int:
    """Exit code: 0 if nothing differs."""
    action, path = sys.argv[1], Path(sys.argv[2])
    topics = Topics()
    found: dict[str, Any] = {}
    for name, value in (*simulations(topics), *faults(topics)):
        found[name] = json.loads(json.dumps(value))
    if action == "record":
        path.write_text(json.dumps(found, indent=1))
        print(f"{len(found)} runs recorded")
        return 0
    before = json.loads(path.read_text())
    differ = [name for name in before.keys() | found.keys() if before.get(name) != found.get(name)]
    print("\n".join(sorted(differ)))
    print(f"{len(found) - len(differ)} of {len(before)} runs are the same")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
