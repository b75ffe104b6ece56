"""The settings that a state was made with: what has to be the same when it is taken back, and what may have changed.

A role kind says it of its settings, the worker remembers it beside the state, and ``streamfl check`` compares without writing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from pydantic import BaseModel

from streamfl import __version__
from streamfl.role import PeerError

__all__ = [
    "LAYOUT_HEADER",
    "RELEASE_HEADER",
    "STATE_SETTINGS_HEADER",
    "STATE_SETTINGS_KEY",
    "Difference",
    "StateSettings",
    "by_key",
    "decode_settings",
    "shown",
]

# The record's key in a changelog, and the header with the settings. It begins as the worker's positions do: a release that knows
# only these takes it for one of a topic that it does not read, and passes over it.
STATE_SETTINGS_KEY = b"\0position/\0made-with"
STATE_SETTINGS_HEADER = "settings"
# How the state is laid out, as a decimal number, and which release wrote there last. Those before 0.2 wrote neither, in layout 1.
LAYOUT_HEADER = "layout"
RELEASE_HEADER = "release"
LONGEST_RELEASE = 100

# All of it is one record, and a list of features may be as long as its writer likes.
LONGEST_VALUE = 2_000
LARGEST_RECORD = 500_000
LONGEST_SHOWN = 200


class Difference(NamedTuple):
    """A setting that is not what it was."""

    key: str
    old: Any
    new: Any

    @property
    def shown_old(self) -> str:
        return shown(self.old)

    @property
    def shown_new(self) -> str:
        return shown(self.new)

    def __str__(self) -> str:
        return f"{self.key} was {self.shown_old}, is {self.shown_new}"


@dataclass(frozen=True)
class StateSettings:
    """Settings by dotted key, as plain values.

    must_stay: under another value the state means something else. may_change: the state goes on under another value, and it is
    said. A key that only one of two records has is compared with nothing: its release did not know it. layout: of the state's keys
    and values. A role that reads layout n reads all before it, and refuses those after it; it counts up where an earlier release
    would not read, or would misread, what this one writes.
    """

    must_stay: Mapping[str, Any] = field(default_factory=dict)
    may_change: Mapping[str, Any] = field(default_factory=dict)
    layout: int = 1

    @classmethod
    def of(cls, settings: Mapping[str, Any], may_change: Collection[str], layout: int = 1) -> StateSettings:
        """What is not named in ``may_change`` must stay, so that nobody forgets a new key in silence."""
        return cls(
            {key: value for key, value in settings.items() if key not in may_change},
            {key: value for key, value in settings.items() if key in may_change},
            layout,
        )

    def __bool__(self) -> bool:
        return bool(self.must_stay or self.may_change)

    @property
    def values(self) -> dict[str, Any]:
        """All of it, by dotted key."""
        return {**self.must_stay, **self.may_change}

    def encode(self) -> bytes:
        """All of it as a JSON object; a value that is too long to be kept is kept as its digest."""
        return msgspec.json.encode(_bounded(self.values), order="sorted")

    def headers(self) -> tuple[tuple[str, bytes], ...]:
        """Of the record."""
        return (
            (STATE_SETTINGS_HEADER, self.encode()),
            (LAYOUT_HEADER, b"%d" % self.layout),
            (RELEASE_HEADER, __version__.encode()),
        )

    def shown(self) -> str:
        """All of it for a person to read, each value as a settings file has it, cut short."""
        values = self.values
        return "; ".join(f"{key} = {shown(values[key])}" for key in sorted(values))

    def unreadable(self, headers: Iterable[tuple[str, bytes]]) -> str:
        """Why this release does not read a state that was written with these headers; empty: it does.

        PeerError with reason malformed where the layout is no number.
        """
        found = dict(headers)
        layout, release = found.get(LAYOUT_HEADER, b"1"), found.get(RELEASE_HEADER, b"")[:LONGEST_RELEASE]
        if not re.fullmatch(rb"[1-9][0-9]{0,8}", layout):
            raise PeerError("malformed", f"a layout {layout[:20]!r}")
        if int(layout) <= self.layout:
            return ""
        return (
            f"it was written by streamfl {release.decode(errors='replace')} in layout {int(layout)}, and this is streamfl "
            f"{__version__}, which reads layouts up to {self.layout}"
        )

    def compare(self, remembered: Mapping[str, Any]) -> tuple[list[Difference], list[Difference]]:
        """What must have stayed and did not, and what has changed and may."""
        return list(_differences(remembered, self.must_stay)), list(_differences(remembered, self.may_change))


def by_key(settings: BaseModel, sections: Iterable[str]) -> dict[str, Any]:
    """The keys of these sections, dotted, as plain values; a section that is not there has none."""
    named = set(sections)
    content = {name: getattr(settings, name) for name in type(settings).model_fields if name in named}
    found = {name: section.remembered() for name, section in content.items() if section is not None}
    return {f"{name}.{key}": value for name, keys in found.items() for key, value in keys.items()}


def decode_settings(content: bytes | None) -> dict[str, Any]:
    """What :meth:`StateSettings.encode` gave. PeerError with reason malformed or oversized."""
    if content is None:
        raise PeerError("malformed", "a record of settings without any")
    if len(content) > LARGEST_RECORD:
        raise PeerError("oversized", f"settings of {len(content)} bytes, at most {LARGEST_RECORD} are accepted")
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError("malformed", f"a record of settings: {error}") from None


def shown(value: Any) -> str:
    """A value as a settings file has it, cut short.

    >>> shown([0.0, 10.0]), shown(None), shown("default")
    ('[0.0,10.0]', 'not set', '"default"')
    """
    if value is None:
        return "not set"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."


def _differences(remembered: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterable[Difference]:
    bounded = _bounded(settings)
    for key in sorted(remembered.keys() & settings.keys()):
        # As JSON has it: a tuple is a list there.
        if msgspec.json.encode(remembered[key]) != msgspec.json.encode(bounded[key]):
            yield Difference(key, remembered[key], settings[key])


def _bounded(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _digest(value) for key, value in settings.items()}


def _digest(value: Any) -> Any:
    content = msgspec.json.encode(value)
    if len(content) <= LONGEST_VALUE:
        return value
    return f"{content[:40].decode(errors='replace')}... (SHA-256 {hashlib.sha256(content).hexdigest()})"
