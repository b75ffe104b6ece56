"""Guesses the format of records: tries the formats in turn, and takes the first that reads them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from streamfl.contract.role import BadRecord, ConfigurationError, DataError, IgnoredRecord, NotYetReadable
from streamfl.records.csv_layout import guess_layout
from streamfl.records.formats import SPECIAL_KEYS, Format, format_of
from streamfl.records.topic import TopicSection

__all__ = ["InferredFormat", "infer_format"]

# Share of the records that have to be readable.
SHARE = 0.8
FRAME_BYTES = 5
# Bytes of a record that the error text shows.
SHOWN_BYTES = 40
RETRY_SECONDS = 0.5


@dataclass(frozen=True)
class InferredFormat:
    """keys: of the topic's section. contents: of the records that could be read, None for the others. why: a
    text for the user.

    passed_over: how many records are neither samples nor mistakes.
    headers: places of the records that name a file's columns.
    """

    keys: dict[str, Any]
    format: Format
    contents: list[dict[str, Any] | None]
    why: str
    passed_over: int = 0
    headers: frozenset[int] = frozenset()

    def without_headers(self) -> InferredFormat:
        """The same without the records that name columns."""
        contents = [content for place, content in enumerate(self.contents) if place not in self.headers]
        return replace(
            self, contents=contents, passed_over=self.passed_over - len(self.headers), headers=frozenset()
        )

    @property
    def read(self) -> list[dict[str, Any]]:
        return [content for content in self.contents if content is not None]


def infer_format(values: Sequence[bytes], given: TopicSection, deadline: float) -> InferredFormat:
    """The format of these records.

    given: what is known of the topic; if it names a format, only that format is tried.
    deadline: on the monotonic clock, for the answers of a registry.

    Raises DataError if no format reads the records; NotYetReadable if the registry does not answer.
    """
    if "format" in given.model_fields_set:
        said = given.model_copy(update=_layout("csv", values, given)) if given.format == "csv" else given
        return _readable(values, _tried(values, said, deadline), 0.0, "as you say")
    first = values[0]
    number = int.from_bytes(first[1:FRAME_BYTES], "big")
    if first[:1] == b"\0" and len(first) > FRAME_BYTES:
        told = f"the records begin with the number {number} of a registry's schema"
        if first[FRAME_BYTES : FRAME_BYTES + 1] == b"{":
            names = ["json-schema"]
        elif given.registry is None:
            raise DataError(f"{told}: say where the registry is, --registry http://host:8081")
        else:
            names = ["avro", "protobuf"]
    else:
        told, names = "", ["json", "msgpack", "csv"]
    tried: list[InferredFormat] = []
    missing: list[ConfigurationError] = []
    for name in names:
        try:
            tried.append(
                _tried(
                    values,
                    given.model_copy(update={"format": name, **_layout(name, values, given)}),
                    deadline,
                )
            )
        except ConfigurationError as error:
            missing.append(error)
            continue
        if len(tried[-1].read) >= SHARE * len(values):
            break
    best = max(tried, key=lambda one: len(one.read), default=None)
    if missing and (best is None or not best.read):
        # A format that is not installed might have read them.
        raise missing[0]
    assert best is not None
    best = _readable(values, best, SHARE, told)
    if sum(map(_is_an_event, best.read)) >= SHARE * len(best.read):
        event = _tried(values, given.model_copy(update={"format": "debezium"}), deadline)
        if event.read:
            return replace(event, why="the records are change events")
    return best


def _readable(values: Sequence[bytes], found: InferredFormat, share: float, why: str) -> InferredFormat:
    able = len(found.read) + found.passed_over
    if not found.read or able < share * len(values):
        raise DataError(
            f"{able} of {len(values)} records could be read as {found.keys['format']!r}, and no other way "
            f"reads more. The first begins with {values[0][:SHOWN_BYTES]!r}. Say --record-format; "
            "--schema-file, or --registry, for Avro and Protobuf"
        )
    lost = len(values) - able
    unread = [f"{lost} of {len(values)} records could not be read"] if lost else []
    return replace(found, why="; ".join([*([why] if why else []), *unread]))


def _tried(values: Sequence[bytes], section: TopicSection, deadline: float) -> InferredFormat:
    """ConfigurationError if what the format needs is missing."""
    said = {key: getattr(section, key) for key in ("format", *SPECIAL_KEYS)}
    keys = {key: value for key, value in said.items() if value is not None}
    format = format_of(section)
    decode = format.decoder(Any)
    contents: list[dict[str, Any] | None] = []
    passed, headers = 0, set()
    for place, value in enumerate(values):
        try:
            content = _awaited(decode, value, deadline)
        except IgnoredRecord as why:
            content = None
            passed += 1
            if why.reason == "header":
                headers.add(place)
        except (ValueError, msgspec.DecodeError, RecursionError, BadRecord):
            content = None
        contents.append(content if isinstance(content, dict) and content else None)
    return InferredFormat(keys, format, contents, "", passed, frozenset(headers))


def _awaited(decode: Callable[[bytes], Any], value: bytes, deadline: float) -> Any:
    while True:
        try:
            return decode(value)
        except NotYetReadable:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)


def _layout(name: str, values: Sequence[bytes], given: TopicSection) -> dict[str, Any]:
    """For CSV: the layout's keys that ``given`` leaves out. For other formats: all of these keys as None."""
    if name != "csv":
        return dict.fromkeys(("columns", "delimiter", "decimal"))
    lines = [text for value in values if (text := _text(value)) is not None]
    if not lines:
        return {"columns": given.columns or ["column_1"]}
    found = guess_layout(lines)
    delimiter = None if found.delimiter == "," else found.delimiter
    decimal = None if found.decimal == "." else found.decimal
    layout = {"columns": found.columns, "delimiter": delimiter, "decimal": decimal}
    return {key: value for key, value in layout.items() if getattr(given, key) is None}


def _text(value: bytes) -> str | None:
    try:
        return value.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        return None


def _is_an_event(content: dict[str, Any]) -> bool:
    inner = content.get("payload") if "schema" in content else content
    if not isinstance(inner, dict):
        return False
    return (isinstance(inner.get("op"), str) and "after" in inner) or "__op" in inner or "__deleted" in inner
