"""Turns a user's record into what `streamfl rekey` writes: the same content under another key, or a row of a
sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from streamfl.contract.role import BadRecord, Headers, Record
from streamfl.encoding.wire import LONGEST_KEY, MAXIMUM_BYTES, VERSION, encoded_size
from streamfl.records.fields import name_in, named_fields
from streamfl.records.formats import Format, without_value
from streamfl.records.header_propagation import event_time, time_header, time_in
from streamfl.records.paths import ABSENT, Path, path_of
from streamfl.records.rekey import AssembleSection
from streamfl.records.times import Timestamps
from streamfl.rekeying.assembly_rows import AssemblyRow, Named, Scalar, check_size, scalar

__all__ = ["FROM", "RekeyReader", "Rekeyed", "RowReader", "with_infinities"]

FROM = "streamfl.from"
"""The header of a rewritten record: where the original is, as topic-partition-offset."""


def _text(key: bytes | None) -> str:
    return name_in(key, "the record key")


ReadKey = Callable[[bytes | None], str]


class Rekeyed(msgspec.Struct, frozen=True, gc=False):
    """A record as it is rewritten."""

    key: bytes
    value: bytes
    headers: Headers


class _Content:
    """Reads records' fields and names. by: the field with the name; None: ``of_key`` reads it from the
    record's key."""

    def __init__(
        self, format: Format, by: str | None, columns: Sequence[str] | None, of_key: ReadKey
    ) -> None:
        self._of_key = of_key
        self.format = format
        self._decode = format.decoder(cast(type[Any], Any))
        self._by = None if by is None else path_of(by, columns)

    def fields(self, record: Record) -> dict[str, Any]:
        """The fields of a record; BadRecord with reason oversized or malformed."""
        if record.value is None:
            raise without_value(self.format, "a record")
        if (size := len(record.value) + len(record.key or b"")) > MAXIMUM_BYTES:
            raise BadRecord(
                "oversized", f"a record of {size} bytes with its key, at most {MAXIMUM_BYTES} are accepted"
            )
        content = named_fields(self._decode, record.value)
        if isinstance(content, BadRecord):
            raise content
        return content

    def key(self, record: Record, content: Mapping[str, Any]) -> str:
        """The name of the record's client or entity; BadRecord with reason missing_field or malformed."""
        if self._by is None:
            return self._of_key(record.key)
        return _name(self._by, content)


class RekeyReader:
    """Decodes records that are rewritten one by one.

    encode: encodes a record's fields; None: its bytes stay as they are.
    read_key: reads the name from a record's key, where ``by`` is None.
    write_key: makes the new key from the name; None: the key stays as it is.
    """

    def __init__(
        self,
        format: Format,
        by: str | None,
        columns: Sequence[str] | None,
        encode: Callable[[Any], bytes] | None,
        read_key: ReadKey = _text,
        write_key: Callable[[str], bytes] | None = str.encode,
    ) -> None:
        self._content = _Content(format, by, columns, read_key)
        self._write_key = write_key
        self._as_it_is = by is None and encode is None
        self._encode = encode

    def decode(self, record: Record) -> Rekeyed:
        """The rewritten record; BadRecord with reason oversized, malformed or missing_field."""
        content: Mapping[str, Any] = {} if self._as_it_is else self._content.fields(record)
        name = self._content.key(record, content)
        if record.value is None:
            raise without_value(self._content.format, "a record")
        try:
            key = (record.key or b"") if self._write_key is None else self._write_key(name)
            value = record.value if self._encode is None else self._encode(content)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise BadRecord("malformed", f"it cannot be written as the section says: {error}") from None
        headers = (*record.headers, *_origin(record, event_time(record)))
        if (size := encoded_size(key, value, headers)) > MAXIMUM_BYTES or len(key) > LONGEST_KEY:
            raise BadRecord(
                "oversized",
                f"a record of {size} bytes with its key and headers, at most {MAXIMUM_BYTES} are accepted",
            )
        return Rekeyed(key, value, headers)


class RowReader:
    """Decodes records that form samples together. fields: the fields of a sample, as the sample's own record
    names them."""

    def __init__(
        self,
        format: Format,
        by: str | None,
        columns: Sequence[str] | None,
        section: AssembleSection,
        fields: Sequence[str],
        read_key: ReadKey = _text,
    ) -> None:
        self._content = _Content(format, by, columns, read_key)
        self._section = section
        self._times = Timestamps(section.time_unit)
        self._fields = {name: path_of(name, columns) for name in fields}
        self._id, self._time, self._name, self._value = (
            None if text is None else path_of(text, columns)
            for text in (section.id, section.time, section.name, section.value)
        )

    def decode(self, record: Record) -> AssemblyRow:
        """The row in a record; BadRecord with reason oversized, malformed or missing_field."""
        content = self._content.fields(record)
        client = self._content.key(record, content)
        written: Scalar | None = None
        if self._time is None:
            time = event_time(record)
        else:
            written = scalar(_found(self._time, content), self._time.text)
            time = self._times.read(written, self._time.text)
        if self._id is not None:
            place = _name(self._id, content)
        else:
            assert self._section.seconds is not None
            place = str(math.floor(time / self._section.seconds))
        values = self._inputs(content)
        check_size(values)
        return AssemblyRow(
            VERSION, client, place, time, written, tuple(Named(name, value) for name, value in values.items())
        )

    def _inputs(self, content: Mapping[str, Any]) -> dict[str, Scalar]:
        if self._name is not None and self._value is not None:
            name = _name(self._name, content)
            if name not in self._fields:
                return {}
            found = {name: (_found(self._value, content), self._value.text)}
        else:
            found = {
                name: (path.find(cast(dict[str, Any], content)), name) for name, path in self._fields.items()
            }
        values = {name: scalar(value, shown) for name, (value, shown) in found.items() if value is not ABSENT}
        return {name: value for name, value in values.items() if value is not None}


def with_infinities(content: Any) -> Any:
    """The content with infinities as text.

    JSON has no infinity: the encoder would write null, and null is filled in like any missing value. The
    error would go unnoticed."""
    if isinstance(content, dict):
        return {name: with_infinities(value) for name, value in content.items()}
    if isinstance(content, list):
        return [with_infinities(value) for value in content]
    return repr(content) if isinstance(content, float) and math.isinf(content) else content


def _origin(record: Record, time: float) -> Headers:
    own = {name for name, _ in record.headers}
    place = f"{record.topic}-{record.partition}-{record.offset}".encode()
    # A time header that cannot be read does not count. Ours is appended after it, and ``time_in`` finds ours.
    timed = time_in(record.headers) is not None
    return (*(() if timed else (time_header(time),)), *(() if FROM in own else ((FROM, place),)))


def _found(path: Path, content: Mapping[str, Any]) -> Any:
    value = path.find(cast(dict[str, Any], content))
    if value is ABSENT:
        raise BadRecord("missing_field", path.lacking(cast(dict[str, Any], content)))
    return value


def _name(path: Path, content: Mapping[str, Any]) -> str:
    value = _found(path, content)
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise BadRecord("malformed", f"{path.text} is of the type {type(value).__name__}, a name is expected")
    return name_in(value, path.text)
