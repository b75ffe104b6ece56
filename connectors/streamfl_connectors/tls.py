"""Explains why a broker refuses a client over TLS. Both Kafka libraries only pass on the broker's text."""

from __future__ import annotations

import re

__all__ = ["why_refused"]

CERTIFICATE = re.compile(
    r"alert (bad certificate|certificate (required|expired|revoked|unknown)|unknown ca)", re.IGNORECASE
)
# The error of a client without TLS that reads the first bytes of an alert.
NO_TLS = re.compile(r"invalid frame length", re.IGNORECASE)


def why_refused(said: str) -> str | None:
    """What is wrong with the settings, if a library's text shows it; else None.

    >>> why_refused("tlsv13 alert certificate required")
    'the broker requires a client certificate and key, or does not trust the given ones'
    """
    if CERTIFICATE.search(said):
        return "the broker requires a client certificate and key, or does not trust the given ones"
    if NO_TLS.search(said):
        return "the server there does not speak Kafka without TLS: check the security protocol"
    return None
