"""Begins a worker's traces for OpenTelemetry, if they are enabled. Otherwise OpenTelemetry is not
imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.role import ConfigurationError

if TYPE_CHECKING:
    from streamfl.runtime.spans import Traces

__all__ = ["begin_traces"]


def begin_traces(settings: RoleSettings) -> Traces | None:
    """The traces of a worker with these settings; None if ``tracing.enabled`` is not set."""
    if not settings.tracing.enabled:
        return None
    try:
        from streamfl.runtime.spans import export_traces
    except ImportError as error:
        raise ConfigurationError(
            f"tracing.enabled = true needs OpenTelemetry: pip install 'streamfl[tracing]' ({error})"
        ) from None
    return export_traces(settings)
