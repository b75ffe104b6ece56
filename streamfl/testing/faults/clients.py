"""Scenarios of federations whose clients write samples to one topic, and what has to hold of each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import Record
from streamfl.contract.seeding import rng_for
from streamfl.runtime.bus import Bus
from streamfl.runtime.kinds import federation_topics, find_kind
from streamfl.runtime.remembered_positions import POSITION_KEY
from streamfl.simulation.clients import SAMPLES, ClientMembers, PublishedPrediction
from streamfl.testing.faults.cluster import FaultyBus
from streamfl.testing.faults.fault_rates import drawn_by, drawn_rates
from streamfl.testing.faults.federation import Federation, Reading
from streamfl.testing.faults.history import History
from streamfl.testing.faults.observed_messages import latest, require
from streamfl.testing.faults.scenario import MembersScenario

__all__ = ["Answer", "Check", "ClientScenario", "client_scenarios", "identity"]


class Answer(NamedTuple):
    """A sample that was predicted, with its label. prediction: in the label's own unit."""

    sample: str
    label: float
    prediction: float | None


Check = Callable[[Mapping[str, Sequence[Answer]]], None]
"""What a system adds: it gets the answers by client, in the order of its samples, and raises CheckFailed if
one is wrong."""


def identity(record: Record) -> tuple[str, str]:
    """Client and sample of a prediction."""
    prediction = _prediction(record)
    return prediction.client, prediction.sample


def _prediction(record: Record) -> PublishedPrediction:
    return msgspec.json.decode(record.value or b"", type=PublishedPrediction)


@dataclass(frozen=True, kw_only=True)
class ClientScenario(MembersScenario):
    """Clients that write samples. Every sample has to be predicted.

    members_of: who takes part.
    settings: of any of them.
    """

    members_of: ClientMembers[Any]
    settings: RoleSettings

    def __str__(self) -> str:
        return (
            f"{len(self.samples)} clients, {dict(self.workers)}, {self.partitions} partitions; {self.faults}"
        )

    def of(self, member: str) -> RoleSettings:
        found: RoleSettings = self.members_of.of(self.settings)[member]
        return found

    @property
    def topics(self) -> Sequence[TopicSpec]:
        # In the order in which the members are described, whatever the order of their processes.
        return federation_topics(self.members_of.of(self.settings).values(), self.partitions)

    @property
    def predictions(self) -> str:
        """The topic with the predictions."""
        return self.settings.predictions_topic

    @property
    def samples(self) -> dict[str, list[Reading]]:
        """Every sample, by client, in order."""
        by_client: dict[str, list[Reading]] = {}
        for reading in (*(one for producer in self.readings for one in producer), *self.last):
            if reading.topic == SAMPLES:
                by_client.setdefault(reading.client, []).append(reading)
        return by_client

    @property
    def samples_written(self) -> tuple[int, int]:
        """Samples written before the final restart, and in all."""
        last = sum(one.topic == SAMPLES for one in self.last)
        altogether = sum(map(len, self.samples.values()))
        return altogether - last, altogether

    def standing(self, bus: Bus, last: bool) -> str:
        expected = self.samples_written[last]
        predicted = len({identity(record) for record in bus.read(self.predictions)})
        return "" if predicted == expected else f"{predicted} of {expected} samples predicted"


def client_scenarios(
    members: ClientMembers[Any], check: Check | None = None
) -> tuple[Callable[[int], ClientScenario], Callable[[FaultyBus, ClientScenario], None]]:
    """Makes the scenario of a seed, and checks its outcome, for a system that registers no scenarios of its
    own.

    Nothing may be lost or doubled. If clients learn alone, predictions and state equal those of a run without
    faults.
    check: what else has to hold.
    """

    def check_outcome(bus: FaultyBus, chosen: ClientScenario) -> None:
        answers = _answers(bus, chosen)
        if check is not None:
            check(answers)
        if members.learn_alone:
            calm = Federation(chosen.calm, History())
            calm.run()
            require(answers == _answers(calm.bus, chosen), "predictions are not as in a run without faults")
            for topic in _changelogs(chosen):
                require(
                    _state(bus, topic) == _state(calm.bus, topic),
                    f"{topic}: the state is not as in a run without faults",
                )

    return lambda seed: _scenario(members, seed), check_outcome


def _scenario(members: ClientMembers[Any], seed: int) -> ClientScenario:
    draws = rng_for(seed, *members.kinds.values(), "scenario")
    _, between = drawn_by(draws)
    clients, rounds, seconds = between(1, 5), between(3, 14), float(draws.uniform(5, 20))
    readings = [list(_readings(draws, f"client-{number}", rounds, seconds)) for number in range(clients)]
    return ClientScenario(
        seed=seed,
        members_of=members,
        settings=members.small("sim", clients, seed, format="msgpack", sample_id="id"),
        workers={name: between(1, 3) for name in members.kinds},
        partitions=between(1, 3),
        readings=tuple(tuple(own[:rounds]) for own in readings),
        last=tuple(one for own in readings for one in own[rounds:]),
        rates=drawn_rates(draws, seed, exactly_once=True),
        faulty_seconds=seconds,
    )


def _readings(draws: np.random.Generator, client: str, rounds: int, seconds: float) -> Iterable[Reading]:
    """A client's samples in the time of faults, and two for after the final restart."""
    times = [*np.sort(draws.uniform(0, seconds, rounds)).tolist(), seconds, seconds]
    for number, at in enumerate(times):
        content = {"id": f"{client}/{number}", "x": float(draws.normal()), "y": float(draws.uniform(0, 1))}
        yield Reading(SAMPLES, client, content, at, labelled=True)


def _answers(bus: Bus, chosen: ClientScenario) -> dict[str, list[Answer]]:
    """Answers by client. CheckFailed if a sample has none or two, or if those of a client are in another
    order."""
    found: dict[str, list[PublishedPrediction]] = defaultdict(list)
    for record in bus.read(chosen.predictions):
        prediction = _prediction(record)
        found[prediction.client].append(prediction)
    answers = {}
    for client, readings in chosen.samples.items():
        expected = [reading.content["id"] for reading in readings]
        names = [one.sample for one in found[client]]
        require(names == expected, f"{client}: predicted {names}, written {expected}")
        both = zip(readings, found[client], strict=True)
        answers[client] = [Answer(one.sample, reading.content["y"], one.prediction) for reading, one in both]
    return answers


def _changelogs(chosen: ClientScenario) -> list[str]:
    kinds = ((find_kind(settings.role.kind), settings) for _, settings in chosen.members.values())
    return [topic for kind, settings in kinds for topic in kind.channels(settings).changelogs.values()]


def _state(bus: Bus, topic: str) -> dict[tuple[int, bytes], bytes]:
    """What a changelog holds of the role, as compaction would leave it."""
    return {at: value for at, value in latest(bus, topic).items() if not at[1].startswith(POSITION_KEY)}
