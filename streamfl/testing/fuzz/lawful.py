"""The laws of a role, on the messages that a federation of the fuzzer has recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from hypothesis import strategies as st

from streamfl.contract.role import Record
from streamfl.simulation.clients import ClientMembers, samples_of
from streamfl.testing.extremes import Extreme
from streamfl.testing.fuzz.clients import anybodys_samples, client_federation
from streamfl.testing.fuzz.federations import FuzzedFederation
from streamfl.testing.fuzz.member import PARTITIONS
from streamfl.testing.subjects import Subject, Traffic

__all__ = ["client_subject", "recorded_subject"]


def recorded_subject(
    federation: FuzzedFederation, member: str, anybody: Callable[[Extreme], Sequence[tuple[str, Record]]]
) -> Subject:
    """A member that gets any of its recorded messages in any order. anybody: see
    :class:`~streamfl.testing.subjects.Subject`."""
    one, heard = federation.member(member), federation.heard(member)

    @st.composite
    def traffics(draw: st.DrawFn) -> Traffic:
        offsets = count()
        batches = draw(st.lists(st.lists(st.sampled_from(heard), max_size=5), max_size=5))
        received = [
            (float(now), [one.decode(record, next(offsets)) for record in batch])
            for now, batch in enumerate(batches)
        ]
        return Traffic(received, PARTITIONS, tuple(one.channels.tables))

    decode = {name: source.decode for name, source in one.channels.sources.items()}
    return Subject(lambda: federation.build(one.settings), traffics(), anybody, decode)


def client_subject(members: ClientMembers[Any]) -> Subject:
    """The member that reads its users' samples."""
    federation = client_federation(members)
    return recorded_subject(
        federation, members.reader, anybodys_samples(samples_of(federation.settings[members.reader]))
    )
