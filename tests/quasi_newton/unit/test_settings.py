"""Settings that are refused before anything starts."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from quasi_newton.federations import settings_of


@pytest.mark.parametrize("member", ["g", "h1", "c"])
def test_a_step_is_never_taken_twice(member: str) -> None:
    """Protects a training that stands still: a host that begins twice may align other entities than the guest was told of."""
    settings_of(member, 1)
    with pytest.raises(ValidationError, match=r"at_least_once.*exactly_once"):
        settings_of(member, 1, bus={"processing_guarantee": "at_least_once"})
