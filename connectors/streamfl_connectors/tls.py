"""What a broker says over TLS when it does not let one in, for both Kafka libraries: they only pass it on."""

from __future__ import annotations

import re

__all__ = ["why_refused"]

CERTIFICATE = re.compile(r"alert (bad certificate|certificate (required|expired|revoked|unknown)|unknown ca)", re.IGNORECASE)
# What a client that does not speak TLS makes of the first bytes of an alert.
NO_TLS = re.compile(r"invalid frame length", re.IGNORECASE)


def why_refused(said: str) -> str | None:
    """What is wrong with the settings, where that is what a library's text tells.

    >>> why_refused("tlsv13 alert certificate required")
    "the broker wants this client's certificate and key, or does not trust the ones that it was given"
    """
    if CERTIFICATE.search(said):
        return "the broker wants this client's certificate and key, or does not trust the ones that it was given"
    if NO_TLS.search(said):
        return "what answers there does not speak Kafka without TLS: see the security protocol"
    return None
