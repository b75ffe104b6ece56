"""Roles with the largest settings that are allowed: everything they accept can be written.

The largest size is found by trying which sizes the settings refuse.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import strategies as st

from streamfl.contract.role import ConfigurationError, Record
from streamfl.encoding.wire import LONGEST_KEY, LONGEST_NAME
from streamfl.runtime.kinds import find_kind
from streamfl.testing.bound_laws import what_is_refused
from streamfl.testing.role_laws import Extreme, Subject

# Exactly at the bounds. The law on small roles checks that nothing larger is accepted.
LARGEST = [
    Extreme(LONGEST_NAME * character, 2**53, 999.0, LONGEST_KEY * b"k") for character in "\N{GRINNING FACE}\0"
]


def written(
    key: bytes | None, content: object, channel: str = "samples", partition: int = 0
) -> tuple[str, Record]:
    """A dictionary as JSON, anything else as MessagePack."""
    value = json.dumps(content).encode() if isinstance(content, dict) else msgspec.msgpack.encode(content)
    return channel, Record(channel, partition, 0, key, value)


def largest(make: Callable[[int], Any]) -> int:
    """The largest size that is not refused. make: returns settings of a size, from 1."""

    def allowed(size: int) -> bool:
        try:
            made = make(size)
            find_kind(made.role.kind).build(made)
        except (ConfigurationError, ValueError):
            return False
        return True

    size = 1
    # Grows from below, because a size that is far too large takes long to build before it is refused.
    while allowed(2 * size):
        size *= 2
    step = size
    while (step := step // 2) >= 1:
        size += step if allowed(size + step) else 0
    return size


def of_the_role(made: Any) -> int:
    """The fingerprint of a role with these settings."""
    return int(find_kind(made.role.kind).build(made).fingerprint)


@dataclass(frozen=True)
class Case:
    """A role to test.

    make: returns settings of a size.
    anybody: returns records for a role with these settings and this fingerprint.
    """

    make: Callable[[int], Any]
    anybody: Callable[[Any, int, Extreme], Sequence[tuple[str, Record]]]
    fingerprint: Callable[[Any], int] = of_the_role


def check_what_is_accepted_can_be_written(case: Case) -> None:
    """A role of the largest allowed size refuses each message at once, or can write its state and its
    replies."""
    made = case.make(largest(case.make))
    kind = find_kind(made.role.kind)
    channels, fingerprint = kind.channels(made), case.fingerprint(made)
    decode = {name: source.decode for name, source in (*channels.inputs.items(), *channels.tables.items())}
    subject = Subject(
        make=functools.partial(kind.build, made),
        traffic=st.nothing(),
        anybody=functools.partial(case.anybody, made, fingerprint),
        decode=decode,
    )
    for extreme in LARGEST:
        assert not what_is_refused(subject, subject.anybody(extreme))
