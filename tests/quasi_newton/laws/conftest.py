"""Keys and secrets that federations of laws share."""

from __future__ import annotations

import pytest
from quasi_newton.federations import Secrets


@pytest.fixture(name="secrets", scope="session")
def _secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    return Secrets(tmp_path_factory.mktemp("secrets"))
