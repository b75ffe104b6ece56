"""A system's part of the soak: its members, its records, and the checks at the end.

It is the object ``SOAK`` in ``tests/<system>/soak.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.role import ConfigurationError, Record
from streamfl.contract.system import installed_systems
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.remembered_positions import POSITION_KEY

__all__ = [
    "FEDERATION",
    "PARTITIONS",
    "Left",
    "Member",
    "Plan",
    "SoakedSystem",
    "Verdict",
    "find_soaked",
    "soaked_systems",
]

FEDERATION = "soak"
PARTITIONS = 4
TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Plan:
    """The plan of a run.

    mode: one of the system's ways to learn.
    nodes: number of the cluster's nodes.
    rate: samples a second, over all members.
    keys: whether members have keys and seal their messages.
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

    sections: the file without ``[bus]``.
    processes: their number.
    """

    sections: str
    processes: int = 1


@dataclass
class Verdict:
    """The result of a soak.

    samples: number of samples to predict.
    lost, doubled: numbers of predictions.
    counts: further figures of the system, by name.
    wrong: descriptions of failed checks.
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
    """A federation's topics at the end.

    settings: by member.
    topics: by name, the records of every topic.
    """

    plan: Plan
    settings: Mapping[str, RoleSettings]
    topics: dict[str, list[Record]]

    def read(self, topic: str) -> Iterator[Record]:
        """The records of a topic, as a bus returns them."""
        return iter(self.topics[topic])

    def of(self, name: str) -> list[Record]:
        """The records of one of the federation's own topics."""
        return self.topics[f"{FEDERATION}.{name}"]

    def latest(self, topic: str, positions: bool = False) -> dict[tuple[int, bytes], bytes]:
        """The latest record of each key: of state, or with ``positions`` of a worker's positions."""
        return latest(self.topics[topic], positions)


@dataclass(frozen=True)
class SoakedSystem:
    """A system under the soak. Its federation's name is :data:`FEDERATION`.

    modes: its ways to learn. The first is the default.
    members: returns a plan's members, by name.
    records: returns the records of a sample of the load, by the plan and the sample's number. They are the
    same every time.
    predicted: returns the sample of a prediction, by the prediction's content. Every sample has to have one.
    check: adds failed checks and counts to the verdict. Positions and dead letters are checked separately.
    turn: the load ends after a multiple of this number of samples, for example if a round waits for all
    clients.
    first: returns records that precede the load and are not part of it, for example if predictions need a
    model.
    begun: returns whether these have had the effect that the load needs, by the topics' records.
    way_back: whether the release before goes on with what this one has learnt.
    """

    modes: tuple[str, ...]
    members: Callable[[Plan], Mapping[str, Member]]
    records: Callable[[Plan, int], Sequence[Outgoing]]
    predicted: Callable[[Mapping[str, Any]], str]
    check: Callable[[Verdict, Left], None]
    turn: int = 1
    first: Callable[[Plan], Sequence[Outgoing]] = lambda plan: ()
    begun: Callable[[Left], bool] = lambda left: True
    way_back: bool = True


def soaked_systems() -> tuple[str, ...]:
    """The names of installed systems with a file ``tests/<system>/soak.py``, by rank."""
    return tuple(
        system.name for system in installed_systems() if (TESTS / _folder(system.name) / "soak.py").exists()
    )


def find_soaked(name: str | None = None) -> tuple[str, SoakedSystem]:
    """Name and soak of a system, by default the first that has one. ConfigurationError lists the existing
    ones."""
    known = soaked_systems()
    if name is None and not known:
        raise ConfigurationError("no installed system has a file tests/<system>/soak.py")
    chosen = known[0] if name is None else name
    if chosen not in known:
        installed = [system.name for system in installed_systems()]
        why = (
            f"it has no tests/{_folder(chosen)}/soak.py" if chosen in installed else "there is no such system"
        )
        raise ConfigurationError(f"--system {chosen}: {why}; known are {', '.join(known)}")
    found: SoakedSystem = importlib.import_module(f"{_folder(chosen)}.soak").SOAK
    return chosen, found


def latest(records: Sequence[Record], positions: bool = False) -> dict[tuple[int, bytes], bytes]:
    """The latest record of each key: of state, or with ``positions`` of a worker's positions."""
    found: dict[tuple[int, bytes], bytes | None] = {}
    for record in records:
        key = record.key or b""
        if key.startswith(POSITION_KEY) == positions:
            found[record.partition, key] = record.value
    return {key: value for key, value in found.items() if value is not None}


def _folder(system: str) -> str:
    return system.replace("-", "_")
