"""The trace that a record's headers name."""

from __future__ import annotations

from collections.abc import Mapping

from streamfl.contract.role import Headers

__all__ = ["trace_of"]

PARENT = "traceparent"


def trace_of(headers: Headers) -> Mapping[str, str]:
    """The trace that a record belongs to, for a line of the log: ``trace_id``, if its header ``traceparent``
    names one.

    >>> trace_of((("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),))
    {'trace_id': '0af7651916cd43dd8448eb211c80319c'}
    >>> trace_of((("traceparent", b"\\xff" * 55),))
    {}
    """
    for name, value in headers:
        # Checked strictly, because strangers write the header and it is shown on a terminal.
        if name.lower() == PARENT and len(value) >= 55 and value[2:3] == value[35:36] == b"-":
            found = value[3:35].decode("ascii", "replace")
            if set(found) <= set("0123456789abcdef") and set(found) != {"0"}:
                return {"trace_id": found}
    return {}
