"""Names in records' keys: text, a number in binary, a UUID, or JSON."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

from pydantic import Field

from streamfl.contract.role import BadRecord, ConfigurationError
from streamfl.encoding.wire import LONGEST_KEY
from streamfl.records.fields import name_in, shown
from streamfl.records.paths import ABSENT, FieldPath, path_of
from streamfl.records.topic import TopicSection

__all__ = ["WITHOUT_KEY", "KeySection", "binary_hint", "key_reader", "key_writer", "remembered_key"]

THE_KEY = "the record key"
WITHOUT_KEY = (
    "records without a key are in arbitrary partitions. Say which field has the name, and let `streamfl "
    "rekey CONFIG` write the topic keyed by it"
)
_WIDTHS = {"int32": 4, "int64": 8}
# Names of the latest keys, so that a key that comes again is not decoded again.
KEPT_NAMES = 8_192


class KeySection(TopicSection):
    """A user's topic whose record keys may name the client or entity."""

    key: Literal["text", "int32", "int64", "uuid", "json", "hex"] = "text"
    """Type of a record's key: `text`; `int32` or `int64`, as Java's serializers write them; `uuid`, as 16
    bytes or as text; `json`, a text or a number; `hex`, any bytes, which become hexadecimal digits."""
    key_field: FieldPath | None = Field(default=None)
    """With `key = "json"`: the field with the name, if the key is an object, such as `payload.id`."""


def key_reader(section: KeySection, setting: str) -> Callable[[bytes | None], str]:
    """A function from a record's key to the name in it; it raises BadRecord with reason missing_field or
    malformed.

    setting: the section's name. ConfigurationError if ``key_field`` has no meaning.
    """
    kind = section.key
    if section.key_field is not None and kind != "json":
        raise ConfigurationError(
            f'{setting}.key_field has no meaning with {setting}.key = "{kind}": leave it out or set key = '
            '"json"'
        )
    if kind == "json":
        # Its keys may be long, so they are not kept.
        return _json_reader(section.key_field)
    # The same clients write again and again.
    return lru_cache(maxsize=KEPT_NAMES)(_reader_of(kind))


def _reader_of(kind: str) -> Callable[[bytes | None], str]:
    if kind == "text":
        return _text
    if kind == "hex":
        return _hex
    if kind == "uuid":
        return _uuid
    width = _WIDTHS[kind]

    def number(key: bytes | None) -> str:
        if key is None:
            raise BadRecord("missing_field", f"{THE_KEY} is missing: {WITHOUT_KEY}")
        if len(key) != width:
            raise BadRecord("malformed", f'{THE_KEY} has {len(key)} bytes, key = "{kind}" has {width}')
        return str(int.from_bytes(key, "big", signed=True))

    return number


def key_writer(section: KeySection) -> Callable[[str], bytes]:
    """A function from a name to the key that :func:`key_reader` reads it from; it raises ValueError for a
    name that has none."""
    kind, field = section.key, section.key_field
    if kind in _WIDTHS:
        width = _WIDTHS[kind]

        def number(name: str) -> bytes:
            try:
                return int(name).to_bytes(width, "big", signed=True)
            except OverflowError:
                raise ValueError(f'{name} is not a number for key = "{kind}" has room for') from None

        return number
    if kind == "hex":
        return bytes.fromhex
    if kind == "uuid":
        return lambda name: uuid.UUID(name).bytes
    if kind == "json":
        return lambda name: json.dumps(name if field is None else _within(field, name)).encode()
    return str.encode


def _within(field: str, name: str) -> dict[str, Any]:
    content: dict[str, Any] = {}
    path_of(field).put(content, name)
    return content


def remembered_key(section: KeySection, field: str | None) -> str | None:
    """The stored value of the setting that names the client or entity. It says how the key is read: names
    depend on that."""
    if field is not None or section.key == "text":
        return field
    return f"the key as {section.key}" + ("" if section.key_field is None else f" at {section.key_field}")


def _text(key: bytes | None) -> str:
    if key is None:
        raise BadRecord("missing_field", f"{THE_KEY} is missing: {WITHOUT_KEY}")
    try:
        return name_in(key, THE_KEY)
    except BadRecord as error:
        raise BadRecord(error.reason, error.text + binary_hint(key)) from None


def binary_hint(key: bytes) -> str:
    """A hint which setting reads a key that is no text; empty for a key that may be text."""
    try:
        key.decode()
        binary = b"\0" in key
    except UnicodeDecodeError:
        binary = True
    if not binary:
        return ""
    fitting = {4: 'key = "int32" or ', 8: 'key = "int64" or ', 16: 'key = "uuid" or '}.get(len(key), "")
    return f'; a binary key of {len(key)} bytes is read with {fitting}key = "hex"'


def _hex(key: bytes | None) -> str:
    if key is None:
        raise BadRecord("missing_field", f"{THE_KEY} is missing: {WITHOUT_KEY}")
    return name_in(key.hex(), THE_KEY)


def _uuid(key: bytes | None) -> str:
    if key is None:
        raise BadRecord("missing_field", f"{THE_KEY} is missing: {WITHOUT_KEY}")
    try:
        return str(uuid.UUID(bytes=key) if len(key) == 16 else uuid.UUID(key.decode()))
    except (UnicodeDecodeError, ValueError):
        raise BadRecord("malformed", f"{THE_KEY} is {shown(key)}, a UUID is expected") from None


def _json_reader(field: str | None) -> Callable[[bytes | None], str]:
    path = None if field is None else path_of(field)

    def read(key: bytes | None) -> str:
        if key is None:
            raise BadRecord("missing_field", f"{THE_KEY} is missing: {WITHOUT_KEY}")
        if len(key) > LONGEST_KEY:
            raise BadRecord("oversized", f"a key of {len(key)} bytes, at most {LONGEST_KEY} are accepted")
        try:
            content: Any = json.loads(key)
        except (ValueError, RecursionError) as error:
            raise BadRecord("malformed", f"{THE_KEY} is {shown(key)}, JSON is expected: {error}") from None
        if path is not None:
            if not isinstance(content, dict):
                raise BadRecord(
                    "malformed", f"{THE_KEY} is {shown(content)}, an object with {path} is expected"
                )
            found = path.find(content)
            if found is ABSENT:
                raise BadRecord("missing_field", f"{THE_KEY}: {path.lacking(content)}")
            content = found
        if isinstance(content, bool) or not isinstance(content, (str, int)):
            hint = (
                ""
                if path is not None or not isinstance(content, dict)
                else "; key_field says which of its fields it is"
            )
            raise BadRecord("malformed", f"{THE_KEY} has {shown(content)}, a name is expected{hint}")
        return name_in(content, THE_KEY)

    return read
