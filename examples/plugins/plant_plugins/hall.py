"""The scheme ``hall://``: a bus by the name of the hall that it stands in, so that no settings file has its
address."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from streamfl.contract.role import ConfigurationError
from streamfl.runtime import bus

__all__ = ["connect"]


def connect(url: str, options: Mapping[str, Any]) -> bus.Bus:
    """The bus of ``hall://NAME``: its URL stands in the environment variable ``HALL_NAME``."""
    variable = f"HALL_{url.partition('://')[2].upper()}"
    if variable not in os.environ:
        raise ConfigurationError(
            f"bus.url: the environment variable {variable} is missing: it says where that hall's bus is"
        )
    return bus.connect(os.environ[variable], options)
