"""Fuzzing of systems whose clients write samples to one topic: what users write, and what has to hold for the
members."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from streamfl.contract.role import Record, Send
from streamfl.records.samples import SamplesSection
from streamfl.simulation.clients import SAMPLES, ClientMembers, samples_of
from streamfl.testing.extremes import Extreme
from streamfl.testing.fuzz.federations import FuzzedFederation, some_of_each, users_record
from streamfl.testing.fuzz.member import PARTITIONS
from streamfl.testing.fuzz.mutations import FuzzedRecord
from streamfl.testing.fuzz.targets import Decoder, RoleTarget, Target, member_targets

__all__ = [
    "CLIENTS",
    "GOOD_CLIENT",
    "ClientTarget",
    "anybodys_samples",
    "client_federation",
    "client_sample",
    "client_targets",
]

GOOD_CLIENT = "the-good-one"
CLIENTS = ("press-1", "press-2", "pümpe")
# Wrong messages name many clients.
MOST_CLIENTS = 10_000


def client_sample(section: SamplesSection, client: str, number: int, label: bool = True) -> FuzzedRecord:
    """A sample as the federation's users would write it. The settings name its fields at the top level of a
    record."""
    names, each = section.features, (math.sin(number), math.cos(number / 3), number % 5 / 5)
    content: dict[str, Any] = {}
    if label and section.label is not None:
        content[section.label] = float(number % 2) if section.label_range[0] == 0 else math.sin(number)
    if section.sample_id is not None:
        content[section.sample_id] = number
    if isinstance(names, list):
        content |= {name: each[place % 3] for place, name in enumerate(names)}
    elif names is not None:
        content[names] = [each[place % 3] for place in range(section.dimension or 1)]
    return users_record(SAMPLES, section, client, content)


def client_federation(members: ClientMembers[Any]) -> FuzzedFederation:
    """A small federation of all members, in which every fifth sample has no label."""
    own = members.of(members.small("plant", MOST_CLIENTS))
    section = samples_of(own[members.reader])

    def written(number: int) -> Iterator[tuple[str, FuzzedRecord]]:
        for client in CLIENTS:
            yield members.reader, client_sample(section, client, number, label=number % 5 < 4)

    # A round with fewer clients than the federation has closes by its timeout.
    return FuzzedFederation(own, written, moments=3, seconds=50.0)


class ClientTarget(RoleTarget):
    """The role that reads its users' samples and publishes a prediction of each."""

    _heard = 0

    def greet(self) -> None:
        assert self.feed(self.good_sample(0)) is None

    def good_sample(self, number: int) -> FuzzedRecord:
        """A sample of a client that the wrong messages never imitate."""
        return client_sample(samples_of(self.settings), GOOD_CLIENT, number, label=False)

    def take(self, message: FuzzedRecord) -> str | None:
        if message.channel == SAMPLES and message.partition % len(PARTITIONS) in self.role.full:
            return "held back"
        return super().take(message)

    def goes_on(self) -> None:
        before = self._heard
        assert self.feed(self.good_sample(self.random.randrange(1000))) is None, "a good sample was refused"
        assert self._heard == before + 1, "a good sample was not predicted"

    def sent(self, send: Send) -> None:
        if send.channel == "predictions":
            prediction = json.loads(send.value)
            assert isinstance(prediction["prediction"], float), f"{prediction['prediction']} is no prediction"
            self._heard += prediction["client"] == GOOD_CLIENT


class _OtherTarget(RoleTarget):
    """Any other role: it has to go on, whatever it got."""

    def goes_on(self) -> None:
        self.tick()


def client_targets(
    random: Random, name: str, members: ClientMembers[Any]
) -> Mapping[str, Callable[[str], Target]]:
    """By name, what makes a target: each member, its start from a damaged changelog, and the decoder of each
    of its channels.

    name: of the system.
    """
    federation = client_federation(members)
    roles: dict[str, type[RoleTarget]] = {
        one: ClientTarget if one == members.reader else _OtherTarget for one in members.kinds
    }
    made = member_targets(random, {name: federation}, roles)
    for member in members.kinds:
        one = federation.member(member)
        for channel in (*one.channels.inputs, *one.channels.tables):
            heard = some_of_each(federation.heard(member, channel))
            made[f"decode {channel} {name}"] = partial(
                Decoder, messages=heard, random=random, decode=one.decode
            )
    return made


def anybodys_samples(section: SamplesSection) -> Callable[[Extreme], Sequence[tuple[str, Record]]]:
    """Samples with the largest contents that anybody may write, for the laws, in JSON: one with such inputs,
    and one with such a label. The key names the client."""
    names = section.features

    def records(extreme: Extreme) -> list[tuple[str, Record]]:
        key, written = extreme.name.encode(), []
        for offset, (label, number) in enumerate([(0.5, extreme.number), (extreme.number, 0.5)]):
            inputs = dict.fromkeys(names, number) if isinstance(names, list) else {names: [number]}
            content = json.dumps({section.label: label, **inputs}).encode()
            written.append((SAMPLES, Record(section.topic, 0, offset, key, content)))
        return written

    return records
