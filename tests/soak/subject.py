"""What a system tells the soak of itself: who takes part, what is written, and what has to hold in the end.

It stands in ``tests/<system>/soak.py`` and is called ``SOAK``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamfl.role import ConfigurationError, Record
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.tasks import POSITION_KEY
from streamfl.settings import RoleSettings
from streamfl.system import installed_systems

__all__ = ["FEDERATION", "PARTITIONS", "Left", "Member", "Plan", "SoakedSystem", "Verdict", "find_soaked", "soaked_systems"]

FEDERATION = "soak"
PARTITIONS = 4
TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Plan:
    """What runs.

    mode: how the system learns, one of its modes.
    nodes: of the cluster.
    rate: samples a second, of all members.
    keys: members have keys, and what they send each other is sealed.
    """

    mode: str
    scheme: str = "kafka"
    nodes: int = 1
    seed: int = 0
    rate: float = 50.0
    keys: bool = False


@dataclass(frozen=True)
class Member:
    """One settings file and the processes that run with it.

    sections: the file, but for ``[bus]``.
    processes: how many.
    """

    sections: str
    processes: int = 1


@dataclass
class Verdict:
    """What came of a federation.

    samples: that were to be predicted.
    lost, doubled: predictions.
    counts: further figures of the system, by name.
    wrong: what does not hold, in words.
    """

    samples: int = 0
    lost: int = 0
    doubled: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def require(self, holds: bool, text: str) -> None:
        if not holds:
            self.wrong.append(text)


@dataclass(frozen=True)
class Left:
    """What a federation left behind.

    settings: by member.
    topics: by name, the records of every topic.
    """

    plan: Plan
    settings: Mapping[str, RoleSettings]
    topics: dict[str, list[Record]]

    def read(self, topic: str) -> Iterator[Record]:
        """The records of a topic, as a bus gives them."""
        return iter(self.topics[topic])

    def of(self, name: str) -> list[Record]:
        """The records of one of the federation's own topics."""
        return self.topics[f"{FEDERATION}.{name}"]

    def latest(self, topic: str, positions: bool = False) -> dict[tuple[int, bytes], bytes]:
        """What compaction would leave of state, or of a worker's own positions beside it."""
        return latest(self.topics[topic], positions)


@dataclass(frozen=True)
class SoakedSystem:
    """A system under the soak. Its federation is called :data:`FEDERATION`.

    modes: in which it can learn; the first, if none is named.
    members: of a plan, by name.
    records: what is written of a sample of the load, by the plan and the sample's number. It is the same every time.
    predicted: which sample a prediction is of, by the prediction's content. Every sample has to have one.
    check: adds to the verdict what does not hold, and counts. Positions and dead letters are looked at besides.
    turn: the load ends after a multiple of so many samples, as where a round waits for all clients.
    first: what is written before the load, and is no sample of it, as where nothing is predicted before there is a model.
    begun: whether that has come to what the load needs, by what the topics hold.
    """

    modes: tuple[str, ...]
    members: Callable[[Plan], Mapping[str, Member]]
    records: Callable[[Plan, int], Sequence[Outgoing]]
    predicted: Callable[[Mapping[str, Any]], str]
    check: Callable[[Verdict, Left], None]
    turn: int = 1
    first: Callable[[Plan], Sequence[Outgoing]] = lambda plan: ()
    begun: Callable[[Left], bool] = lambda left: True


def soaked_systems() -> tuple[str, ...]:
    """The names of installed systems with a file ``tests/<system>/soak.py``, by rank."""
    return tuple(system.name for system in installed_systems() if (TESTS / _folder(system.name) / "soak.py").exists())


def find_soaked(name: str | None = None) -> tuple[str, SoakedSystem]:
    """Name and subject of a system, by default the first that has one; ConfigurationError says which there are."""
    known = soaked_systems()
    if name is None and not known:
        raise ConfigurationError("no installed system has a file tests/<system>/soak.py")
    chosen = known[0] if name is None else name
    if chosen not in known:
        installed = [system.name for system in installed_systems()]
        why = f"it has no tests/{_folder(chosen)}/soak.py" if chosen in installed else "there is no such system"
        raise ConfigurationError(f"--system {chosen}: {why}; known are {', '.join(known)}")
    found: SoakedSystem = importlib.import_module(f"{_folder(chosen)}.soak").SOAK
    return chosen, found


def latest(records: Sequence[Record], positions: bool = False) -> dict[tuple[int, bytes], bytes]:
    """What compaction would leave of state, or of a worker's own positions beside it."""
    found: dict[tuple[int, bytes], bytes | None] = {}
    for record in records:
        key = record.key or b""
        if key.startswith(POSITION_KEY) == positions:
            found[record.partition, key] = record.value
    return {key: value for key, value in found.items() if value is not None}


def _folder(system: str) -> str:
    return system.replace("-", "_")
