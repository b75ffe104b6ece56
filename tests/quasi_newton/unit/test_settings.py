"""Settings that are refused before anything starts."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from quasi_newton.federations import settings_of

from streamfl.quasi_newton.config import QuasiNewtonSettings


@pytest.mark.parametrize("member", ["g", "h1", "c"])
def test_a_step_is_never_taken_twice(member: str) -> None:
    """Protects a training that stands still: a host that begins twice may align other entities than the guest
    was told of."""
    settings_of(member, 1)
    with pytest.raises(ValidationError, match=r"at_least_once.*exactly_once"):
        settings_of(member, 1, bus={"processing_guarantee": "at_least_once"})


def test_a_host_cannot_weigh_evidence() -> None:
    """Protects the guest's labels: a host would need counts of them. It is said whose the method is, and what
    to take instead."""
    guest = settings_of("g", 1, preprocessing={"method": "weight-of-evidence"})
    content = settings_of("h1", 1).model_dump() | {"preprocessing": guest.preprocessing.model_dump()}
    with pytest.raises(
        ValidationError, match=r'"weight-of-evidence" needs labels.*guest alone.*"quantile-bins"'
    ):
        QuasiNewtonSettings.model_validate(content)


def test_a_host_with_the_guests_name_is_told_which_of_both_is_wrong() -> None:
    """Protects whoever copies the guest's file to make the host's: the message said only that the guest is
    the guest."""
    content = settings_of("h1", 1).model_dump() | {"party": {"name": "g"}}
    with pytest.raises(ValidationError, match=r"'g' with role.kind = .quasi-newton-host.*federation.guest"):
        QuasiNewtonSettings.model_validate(content)
