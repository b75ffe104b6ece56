"""Assigns partitions to the members of a group of kafka-python's consumers.

The inputs of a role are co-partitioned, so the leader assigns partition NUMBERS: a member that gets a number
gets that partition of every input. A member keeps what it has as far as that is fair, and goes on reading it
while the group rebalances. A number that has to move takes two generations. In the first no member gets it,
so that its owner gives it up. In the second, which every member asks for at once, it goes to the new owner.
So a partition never has two members in one generation, and no member has a partition in the generation right
after another member had it.

The library's own cooperative assignor will not do: it believes members that were put out of the group, and it
separates the inputs of a role.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kafka import TopicPartition as KafkaPartition
from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor, RebalanceProtocol
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

__all__ = ["CoPartitionAssignor", "deal"]

# The first version with the generation in which a member got its partitions.
VERSION = 2
MORE = b"more"


class CoPartitionAssignor(AbstractPartitionAssignor):  # type: ignore[misc]
    """One member's assignor; the leader's assigns for all. ``ask_again`` has the member join once more.

    partitions: how many of each input are assigned at most. Topics between members may have further ones.
    """

    name = "streamfl-co-partitions"

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self.ask_again: Callable[[], None] = lambda: None
        self._owned: list[KafkaPartition] = []
        self._generation = -1

    def supported_protocols(self) -> list[RebalanceProtocol]:
        """Cooperative: members keep what they have while they join."""
        return [RebalanceProtocol.COOPERATIVE]

    def forget(self) -> None:
        """The member was put out of the group: other members may have its partitions."""
        self._owned, self._generation = [], -1

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolSubscription:
        """What the member sends to the leader: its topics, what it owns, and since which generation."""
        place = ConsumerProtocolSubscription.TopicPartition
        owned = [place(topic=topic, partitions=numbers) for topic, numbers in _by_topic(self._owned)]
        return ConsumerProtocolSubscription(
            version=VERSION,
            topics=sorted(topics),
            user_data=b"",
            owned_partitions=owned,
            generation_id=self._generation,
        )

    def on_assignment(self, assignment: ConsumerProtocolAssignment, generation: int) -> None:
        """Take the member's new partitions. If more will move, the member joins again without waiting for the
        group."""
        self._owned, self._generation = list(assignment.partitions()), generation
        if bytes(assignment.user_data or b"") == MORE:
            self.ask_again()

    def assign(self, cluster: Any, members: Iterable[Any]) -> dict[str, ConsumerProtocolAssignment]:
        """The leader's assignment, by member id."""
        topics: dict[str, list[str]] = {}
        claims: dict[str, tuple[int, set[int]]] = {}
        for member in members:
            told = member.metadata
            topics[member.member_id] = list(told.topics)
            owned = {number for place in told.owned_partitions or () for number in place.partitions}
            claims[member.member_id] = (told.generation_id, owned)
        # A leader that does not know a topic yet takes nothing away.
        known = 1 + max((number for _, owned in claims.values() for number in owned), default=-1)
        names = {topic for own in topics.values() for topic in own}
        counts = {topic: len(cluster.partitions_for_topic(topic) or range(known)) for topic in names}
        numbers = set(range(min(self._partitions, max(counts.values(), default=0))))
        dealt = deal(numbers, claims)
        user_data = MORE if numbers - set().union(*dealt.values()) else b""
        assignments = {}
        for member_id, mine in dealt.items():
            places = [
                KafkaPartition(topic, number)
                for topic in topics[member_id]
                for number in mine
                if number < counts[topic]
            ]
            assignments[member_id] = ConsumerProtocolAssignment(VERSION, _by_topic(places), user_data)
        return assignments


def deal(numbers: set[int], claims: Mapping[str, tuple[int, set[int]]]) -> dict[str, set[int]]:
    """The numbers of each member in the next generation. The owner of a number that is left out has to give
    it up first.

    claims: by member, the generation in which it got its numbers, and these numbers.
    """
    held = _owners(numbers, claims)
    fewest, larger = divmod(len(numbers), len(claims))
    dealt: dict[str, set[int]] = {}
    room: list[str] = []
    for rank, member in enumerate(sorted(claims, key=lambda one: (-len(held[one]), one))):
        share = fewest + (rank < larger)
        dealt[member] = set(sorted(held[member])[:share])
        room += [member] * (share - len(dealt[member]))
    free = numbers - set().union(*(owned for _, owned in claims.values()))
    for number, member in zip(sorted(free), room, strict=False):
        dealt[member].add(number)
    return dealt


def _owners(numbers: set[int], claims: Mapping[str, tuple[int, set[int]]]) -> dict[str, set[int]]:
    """Each number with the member that claims it since the latest generation, if there is only one."""
    held: dict[str, set[int]] = {member: set() for member in claims}
    for number in numbers:
        since = {member: generation for member, (generation, owned) in claims.items() if number in owned}
        latest = [member for member, generation in since.items() if generation == max(since.values())]
        if len(latest) == 1:
            held[latest[0]].add(number)
    return held


def _by_topic(places: Iterable[KafkaPartition]) -> list[tuple[str, list[int]]]:
    found: dict[str, list[int]] = defaultdict(list)
    for place in places:
        found[place.topic].append(place.partition)
    return [(topic, sorted(found[topic])) for topic in sorted(found)]
