"""The laws of a role, on the client."""

import pytest
from shared_mean.roles import MEMBERS

from streamfl.testing.fuzz.lawful import client_subject
from streamfl.testing.role_laws import RoleLaws


@pytest.mark.parametrize("subject", [client_subject(MEMBERS)])
class TestSharedMean(RoleLaws):
    """Deterministic, the same in batches and one by one, after a restart, with wrong messages and with a
    clock that is wrong."""
