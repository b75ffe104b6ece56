"""Whether a worker tells OpenTelemetry of its steps. Where it does not, nothing of OpenTelemetry is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from streamfl.role import ConfigurationError, Headers
from streamfl.settings import RoleSettings

if TYPE_CHECKING:
    from streamfl.runtime.spans import Traces

__all__ = ["begin_traces", "trace_of"]

PARENT = "traceparent"


def begin_traces(settings: RoleSettings) -> Traces | None:
    """What a worker of these settings tells its spans to; None: ``tracing.enabled`` is not set."""
    if not settings.tracing.enabled:
        return None
    try:
        from streamfl.runtime.spans import export_traces
    except ImportError as error:
        raise ConfigurationError(
            f"tracing.enabled = true needs OpenTelemetry: pip install 'streamfl[tracing]' ({error})"
        ) from None
    return export_traces(settings)


def trace_of(headers: Headers) -> Mapping[str, str]:
    """The trace that a record belongs to, for a line of the log: ``trace_id``, if its header ``traceparent`` names one.

    >>> trace_of((("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),))
    {'trace_id': '0af7651916cd43dd8448eb211c80319c'}
    >>> trace_of((("traceparent", b"\\xff" * 55),))
    {}
    """
    for name, value in headers:
        # A stranger writes it, and it goes to a terminal.
        if name.lower() == PARENT and len(value) >= 55 and value[2:3] == value[35:36] == b"-":
            found = value[3:35].decode("ascii", "replace")
            if set(found) <= set("0123456789abcdef") and set(found) != {"0"}:
                return {"trace_id": found}
    return {}
