"""What a cluster answers when it describes a group: an error in the answer is no group without members and
with all rights."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import errors as kafka_errors
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.protocol.admin import DescribeGroupsResponse
from streamfl_connectors.kafka import rights
from streamfl_connectors.kafka.bus import KafkaBus
from streamfl_connectors.kafka.groups import members

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.rights import Right

READ = Right("User:me", "group", "g", "literal", ("Read",))
LOADING = kafka_errors.CoordinatorLoadInProgressError.errno
MOVED = kafka_errors.NotCoordinatorError.errno
DENIED = kafka_errors.GroupAuthorizationFailedError.errno
UNKNOWN = kafka_errors.GroupIdNotFoundError.errno


class Admin:
    """Answers with these error codes, one after the other, as bytes that the library decodes. What may be
    done: Describe."""

    def __init__(self, *codes: int) -> None:
        self._codes = list(codes)
        self._manager = self

    def describe_groups(
        self, groups: list[str], include_authorized_operations: bool = False
    ) -> dict[str, Any]:
        code = self._codes.pop(0)
        state = "Dead" if code == UNKNOWN else "" if code else "Empty"
        given: dict[str, Any] = {
            "error_message": "",
            "group_state": state,
            "protocol_type": "",
            "protocol_data": "",
            "members": [],
        }
        # Bit 8 is Describe. An answer with an error has no operations.
        one = DescribeGroupsResponse.DescribedGroup(
            error_code=code, group_id=groups[0], authorized_operations=None if code else {8}, **given
        )
        encoded = DescribeGroupsResponse(throttle_time_ms=0, groups=[one]).encode(version=6)
        library: Any = KafkaAdminClient.__new__(KafkaAdminClient)
        found: dict[str, Any] = library._describe_groups_process_response(
            DescribeGroupsResponse.decode(encoded, version=6)
        )
        return found

    def run(self, *_: object) -> int:
        """Counts a group that only the newer protocol knows."""
        return 7


@pytest.mark.parametrize("passing", [LOADING, MOVED])
def test_a_coordinator_that_moves_is_asked_again_for_rights(
    passing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects `streamfl check` from green: while a coordinator loads it says nothing of rights, and that is
    not all of them."""
    monkeypatch.setattr(rights.time, "sleep", lambda seconds: None)
    assert rights.missing_rights(Admin(passing, passing, 0), [READ]) == [READ]


def test_a_group_that_may_not_be_described_lacks_all_rights() -> None:
    """Protects `streamfl check` from green: the refusal stands in the answer, and the library does not raise
    it."""
    assert rights.missing_rights(Admin(DENIED), [READ]) == [READ]


def test_a_coordinator_that_never_answers_grants_nothing_that_is_known_to_be_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Protects a check from a wait without end: what the cluster does not report counts as granted."""
    monkeypatch.setattr(rights, "COORDINATOR_SECONDS", 0.0)
    assert rights.missing_rights(Admin(LOADING, LOADING), [READ]) == []
    assert rights.missing_rights(Admin(UNKNOWN), [READ]) == []


@pytest.mark.parametrize(
    ("code", "error"), [(DENIED, kafka_errors.GroupAuthorizationFailedError), (LOADING, KafkaError)]
)
def test_an_error_is_no_group_without_members(code: int, error: type[KafkaError]) -> None:
    """Protects commands that want no member to run: a refusal is not a group of nobody, and it keeps its
    class for the operator."""
    with pytest.raises(error, match=r"^\[Error \d+\] \w+Error: $"):
        members(Admin(code), "g")


def test_a_group_that_the_older_protocol_does_not_know_is_asked_for_with_the_newer() -> None:
    """Protects counts of members of groups with KIP-848, which newer clusters report as an error and as
    Dead."""
    assert members(Admin(UNKNOWN), "g") == 7
    assert members(Admin(0), "g") == 0


def test_a_refusal_names_the_group() -> None:
    """Protects the operator who has to grant the right: of which group is what the answer does not say."""
    bus: Any = KafkaBus.__new__(KafkaBus)
    bus.admin = Admin(DENIED)
    with pytest.raises(ConfigurationError, match="Read on group 'g'"):
        bus.members("g")
