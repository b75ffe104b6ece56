"""The settings that a state was made with: which have to be the same when the state is restored, and which
may have changed.

A role kind divides its settings so, the worker stores them beside the state, and ``streamfl check`` compares
without writing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from pydantic import BaseModel

from streamfl import __version__
from streamfl.contract.role import BadRecord

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

# The record's key in a changelog, and the header with the settings. The key begins like those of the worker's
# positions: a release that knows only positions takes the record for the position of a topic that it does not
# read, and skips it.
STATE_SETTINGS_KEY = b"\0position/\0made-with"
STATE_SETTINGS_HEADER = "settings"
# The layout of the state, as a decimal number, and the release that wrote last. Releases before 0.2 wrote
# neither, in layout 1.
LAYOUT_HEADER = "layout"
RELEASE_HEADER = "release"
LONGEST_RELEASE = 100

# All settings are one record, and a list of features may have any length.
LONGEST_VALUE = 2_000
LARGEST_RECORD = 500_000
LONGEST_SHOWN = 200
# A deeper value could be decoded, and then not compared or shown: each takes room on Python's stack.
DEEPEST_VALUE = 50


class Difference(NamedTuple):
    """A setting whose value has changed."""

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

    must_stay: under another value the state means something else.
    may_change: the state goes on under another value, and the log says so. A key that only one of two records
    has is not compared: the other's release did not know it.
    set_once: keys of may_change that may be set later if they were not set before. Then they must stay.
    layout: the number of the layout of the state's keys and values. A role that reads layout n reads all
    earlier layouts too, and refuses later ones. It counts up when an earlier release could not read, or would
    misread, what this release writes.
    """

    must_stay: Mapping[str, Any] = field(default_factory=dict)
    may_change: Mapping[str, Any] = field(default_factory=dict)
    layout: int = 1
    set_once: Collection[str] = ()

    @classmethod
    def of(
        cls,
        settings: Mapping[str, Any],
        may_change: Collection[str],
        layout: int = 1,
        set_once: Collection[str] = (),
    ) -> StateSettings:
        """Settings that are not named in ``may_change`` must stay, so that a new key cannot be forgotten
        silently."""
        return cls(
            {key: value for key, value in settings.items() if key not in may_change},
            {key: value for key, value in settings.items() if key in may_change},
            layout,
            set_once,
        )

    def __bool__(self) -> bool:
        return bool(self.must_stay or self.may_change)

    @property
    def values(self) -> dict[str, Any]:
        """All settings, by dotted key."""
        return {**self.must_stay, **self.may_change}

    def encode(self) -> bytes:
        """All settings as a JSON object. A value that is too long is replaced by its digest."""
        return msgspec.json.encode(_bounded(self.values), order="sorted")

    def headers(self) -> tuple[tuple[str, bytes], ...]:
        """The headers of the changelog record."""
        return (
            (STATE_SETTINGS_HEADER, self.encode()),
            (LAYOUT_HEADER, b"%d" % self.layout),
            (RELEASE_HEADER, __version__.encode()),
        )

    def shown(self) -> str:
        """All settings for a person to read, each value as in a settings file, cut short."""
        values = self.values
        return "; ".join(f"{key} = {shown(values[key])}" for key in sorted(values))

    def unreadable(self, headers: Iterable[tuple[str, bytes]]) -> str:
        """Why this release cannot read a state that was written with these headers; empty if it can.

        BadRecord with reason malformed if the layout is no number.
        """
        found = dict(headers)
        layout, release = found.get(LAYOUT_HEADER, b"1"), found.get(RELEASE_HEADER, b"")[:LONGEST_RELEASE]
        if not re.fullmatch(rb"[1-9][0-9]{0,8}", layout):
            raise BadRecord("malformed", f"a layout {layout[:20]!r}")
        if int(layout) <= self.layout:
            return ""
        return (
            f"it was written by streamfl {release.decode(errors='replace')} in layout {int(layout)}, and "
            f"this is streamfl {__version__}, which reads layouts up to {self.layout}"
        )

    def compare(self, remembered: Mapping[str, Any]) -> tuple[list[Difference], list[Difference]]:
        """The differences among settings that must stay, and those among settings that may change."""
        wrong = list(_differences(remembered, self.must_stay))
        others: list[Difference] = []
        for found in _differences(remembered, self.may_change):
            was_set = found.key in self.set_once and found.old is not None
            (wrong if was_set else others).append(found)
        return wrong, others


def by_key(settings: BaseModel, sections: Iterable[str]) -> dict[str, Any]:
    """The dotted keys of these sections with their plain values. A missing section has none."""
    named = set(sections)
    content = {name: getattr(settings, name) for name in type(settings).model_fields if name in named}
    found = {name: section.remembered() for name, section in content.items() if section is not None}
    return {f"{name}.{key}": value for name, keys in found.items() for key, value in keys.items()}


def decode_settings(content: bytes | None) -> dict[str, Any]:
    """Decode the result of :meth:`StateSettings.encode`. BadRecord with reason malformed or oversized."""
    if content is None:
        raise BadRecord("malformed", "a record of settings without any")
    if len(content) > LARGEST_RECORD:
        raise BadRecord(
            "oversized", f"settings of {len(content)} bytes, at most {LARGEST_RECORD} are accepted"
        )
    try:
        settings = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecord("malformed", f"a record of settings: {error}") from None
    if _is_deeper(settings, DEEPEST_VALUE):
        raise BadRecord("malformed", "a record of settings: it is nested too deeply")
    return settings


def shown(value: Any) -> str:
    """A value as in a settings file, cut short.

    >>> shown([0.0, 10.0]), shown(None), shown("default")
    ('[0.0,10.0]', 'not set', '"default"')
    """
    if value is None:
        return "not set"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."


def _is_deeper(value: Any, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth < 0 or any(_is_deeper(one, depth - 1) for one in inner)


def _differences(remembered: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterable[Difference]:
    bounded = _bounded(settings)
    for key in sorted(remembered.keys() & settings.keys()):
        # Compared as JSON, because a tuple became a list there, and a table's keys were sorted.
        old, new = (msgspec.json.encode(one[key], order="sorted") for one in (remembered, bounded))
        if old != new:
            yield Difference(key, remembered[key], settings[key])


def _bounded(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _digest(value) for key, value in settings.items()}


def _digest(value: Any) -> Any:
    content = msgspec.json.encode(value)
    if len(content) <= LONGEST_VALUE:
        return value
    return f"{content[:40].decode(errors='replace')}... (SHA-256 {hashlib.sha256(content).hexdigest()})"
