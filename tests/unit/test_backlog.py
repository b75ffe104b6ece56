"""What a role that learns a backlog in step with its peers is told of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from streamfl.contract.role import Role
from streamfl.runtime.backlog import Backlog
from streamfl.runtime.bus import Session, TopicPartition


class Listening:
    """A role that notes what it is told."""

    prompt = urgent = False
    most_records = backlog = None

    def __init__(self) -> None:
        self.told: list[Mapping[int, Mapping[str, int]]] = []

    def unread(self, records: Mapping[int, Mapping[str, int]]) -> None:
        self.told.append(dict(records))


class Fetching:
    """A session whose first fetches have not brought the end of every input."""

    def __init__(self) -> None:
        self.reported: dict[TopicPartition, int] = {}
        self.answer: dict[TopicPartition, int] = {}
        self.asked = 0

    def unread(self) -> Mapping[TopicPartition, int]:
        return self.reported

    def lag(self) -> Mapping[TopicPartition, int]:
        self.asked += 1
        return self.answer


def test_a_partition_is_told_of_once_the_end_of_each_of_its_inputs_is_known() -> None:
    """Protects a backlog from a worker that starts: if labels that nobody has seen yet counted as none, the
    samples would be predicted before them, without anything learnt."""
    role, session = Listening(), Fetching()
    backlog = Backlog(cast("Role", role), 500)
    for reported in (
        {},
        {("samples", 0): 0, ("labels", 1): 7},
        {("samples", 0): 0, ("labels", 1): 7, ("samples", 1): 2},
        {("samples", 0): 0, ("labels", 1): 7, ("samples", 1): 2, ("labels", 0): 3000, ("old", 0): 5},
    ):
        session.reported = reported
        backlog.tell(cast("Session", session), {"samples": "rows", "labels": "results"}, (0, 1))
    of_1 = {"rows": 2, "results": 7}
    assert role.told == [{}, {}, {1: of_1}, {0: {"rows": 0, "results": 3000}, 1: of_1}]


def test_the_cluster_is_asked_for_an_end_that_no_fetch_has_brought() -> None:
    """Protects the labels of a history: kafka-python knows their end once it has given all samples that came
    in the same fetch, and these would be predicted before a label is read."""
    role, session = Listening(), Fetching()
    session.reported, session.answer = {("samples", 0): 3}, {("samples", 0): 8, ("labels", 0): 8}
    backlog, channels = Backlog(cast("Role", role), 500), {"samples": "rows", "labels": "results"}
    for samples in (3, 2, 1):
        session.reported = {("samples", 0): samples}
        backlog.tell(cast("Session", session), channels, (0,))
    assert role.told == [{0: {"rows": samples, "results": 8}} for samples in (3, 2, 1)]
    assert session.asked == 1
    session.reported = {("samples", 0): 1, ("labels", 0): 5}
    backlog.tell(cast("Session", session), channels, (0,))
    assert role.told[-1] == {0: {"rows": 1, "results": 5}}
