"""Settings from the environment: STREAMFL_SECTION__KEY."""

from __future__ import annotations

import json
import os
from typing import Any

from pydantic_settings import BaseSettings, SettingsError
from pydantic_settings.sources import EnvSettingsSource

from streamfl.configuration.settings_mistakes import unknown
from streamfl.contract.role import ConfigurationError

__all__ = ["ENVIRONMENT_PREFIX", "NESTED_DELIMITER", "read_environment"]

ENVIRONMENT_PREFIX = "STREAMFL_"
NESTED_DELIMITER = "__"


def read_environment(cls: type[BaseSettings]) -> dict[str, Any]:
    """Sections by name, keys within, of settings of this class. ConfigurationError at an unknown section, or
    a value that cannot be read."""
    for name in os.environ:
        # A name with single underscores is not ours (Kubernetes sets STREAMFL_SERVICE_HOST for a service
        # named streamfl).
        if name.upper().startswith(ENVIRONMENT_PREFIX) and NESTED_DELIMITER in name:
            section = name[len(ENVIRONMENT_PREFIX) :].split(NESTED_DELIMITER)[0].lower()
            if section not in cls.model_fields:
                raise ConfigurationError(f"environment variable {name}: {unknown(section, cls.model_fields)}")
    try:
        content = dict(EnvSettingsSource(cls)())
    except SettingsError as error:
        raise ConfigurationError(f"environment: {error}: {error.__cause__}") from None
    bus = content.get("bus")
    if isinstance(bus, dict) and isinstance(options := bus.get("options"), dict):
        bus["options"] = {name: _json_or_text(value) for name, value in options.items()}
    return content


def _json_or_text(value: Any) -> Any:
    # Other sections declare the types of their keys; the options of a client library have no declared types.
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
