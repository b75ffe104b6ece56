"""Formats of users' records: JSON, MessagePack and CSV.

Other formats register in the entry-point group ``streamfl.formats``.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from streamfl.contract.role import ConfigurationError, IgnoredRecord
from streamfl.records.csv_layout import Decimal, split_line, with_point
from streamfl.records.formats import FormatKeys
from streamfl_connectors.framing import LENGTH, is_framed, missing_extra, told_of_frame
from streamfl_connectors.plain_content import PlainContent

if TYPE_CHECKING:
    from streamfl_connectors.json_schema import Checked

__all__ = ["Csv", "Json", "JsonSchema", "MessagePack"]

Decoded = TypeVar("Decoded")


def _anything(value: bytes) -> Any:
    try:
        return _decode_json(value)
    except msgspec.DecodeError:
        pass
    if (told := told_of_frame(value)) is not None:
        raise ValueError(told)
    # Many writers put NaN into JSON, and a caller that reads Any wants to see the NaN.
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError as error:
        raise ValueError(
            f"no text in UTF-8 (byte {error.start}): compressed, or in another format?"
        ) from None
    except ValueError:
        raise ValueError("a whole number has thousands of digits") from None


_decode_json = msgspec.json.Decoder(Any).decode


class Json:
    """JSON in UTF-8. Numbers that JSON does not have (NaN, infinities) are written as null.

    >>> Json().decoder(dict)(b'{"a": 1}')
    {'a': 1}
    """

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder()

    def decoder(self, type: type[Decoded]) -> Callable[[bytes], Decoded]:
        """A function from bytes to ``type``; it raises msgspec.DecodeError, or ValueError where ``type`` is
        Any."""
        return _anything if type is Any else msgspec.json.Decoder(type).decode

    def encode(self, content: Any) -> bytes:
        """The JSON of a mapping, sequence, text, number, Struct or None."""
        return self._encoder.encode(content)


class JsonSchema(Json):
    """JSON after the number of a JSON Schema, as serialisers with a registry write it.

    The number is ignored unless records are to be checked: JSON can be read without its schema, so no
    registry is asked. A record without the number is accepted too.

    >>> JsonSchema().decoder(dict)(bytes([0, 0, 0, 0, 7]) + b'{"a": 1}')
    {'a': 1}
    """

    takes = ("schema_file", "check_schema")

    def __init__(self, checked: Checked | None = None) -> None:
        super().__init__()
        self._checked = checked

    @classmethod
    def for_topic(cls, section: FormatKeys, setting: str) -> JsonSchema:
        """The format of a topic; ConfigurationError if records are to be checked and there is nothing to
        check them with."""
        if not section.check_schema:
            if section.schema_file is not None:
                raise ConfigurationError(
                    f"{setting}.schema_file has a meaning with {setting}.check_schema = true alone"
                )
            return cls()
        try:
            from streamfl_connectors.json_schema import Checked
        except ImportError as missing:
            raise missing_extra(setting, section.format, "json-schema", missing) from None
        return cls(Checked.for_topic(section, setting))

    def decoder(self, type: type[Decoded]) -> Callable[[bytes], Decoded]:
        """A function from bytes to ``type``; it raises msgspec.DecodeError, ValueError, BadRecord or
        NotYetReadable."""
        inner = super().decoder(type)
        if self._checked is not None:
            return self._checked.decoder(inner)
        return lambda value: inner(value[LENGTH:] if is_framed(value) else value)

    def encode(self, content: Any) -> bytes:
        """The JSON of a mapping, sequence, text, number, Struct or None; if records are checked, after its
        schema's number."""
        written = super().encode(content)
        return written if self._checked is None else self._checked.named(written)


def _content_of(code: int, content: memoryview) -> bytes:
    return bytes(content)


class MessagePack:
    """MessagePack.

    >>> MessagePack().decoder(dict)(MessagePack().encode({"a": 1}))
    {'a': 1}
    """

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()

    def decoder(self, type: type[Decoded]) -> Callable[[bytes], Decoded]:
        """A function from bytes to ``type``; it raises msgspec.DecodeError. Of an extension type it gives the
        bytes."""
        return msgspec.msgpack.Decoder(type, ext_hook=_content_of).decode

    def encode(self, content: Any) -> bytes:
        """The MessagePack of a mapping, sequence, text, number, Struct or None."""
        return self._encoder.encode(content)


class Csv(PlainContent):
    """CSV: one line of values per record, in UTF-8. An empty value is a missing one.

    columns: the names of the values, in their order. A line that consists of these names is a file's header
    and no record.
    delimiter: between two values.
    decimal: the mark in numbers; numbers with a comma are returned with a point.

    >>> Csv(["site", "temp"]).decoder(dict)(b"north,21.5")
    {'site': 'north', 'temp': '21.5'}
    >>> Csv(["site", "temp"], ";", ",").decoder(dict)(b"north;21,5")
    {'site': 'north', 'temp': '21.5'}
    """

    textual = True
    strict = False
    takes = ("columns", "delimiter", "decimal")

    def __init__(self, columns: Sequence[str], delimiter: str = ",", decimal: Decimal = ".") -> None:
        self._columns = list(columns)
        # A column without a name has a made-up one.
        self._header = ["" if name == f"column_{place}" else name for place, name in enumerate(columns, 1)]
        self._delimiter = delimiter
        self._decimal = decimal

    @classmethod
    def for_topic(cls, section: FormatKeys, setting: str) -> Csv:
        """The format of a topic; ConfigurationError if its columns have no names."""
        if not section.columns:
            raise ConfigurationError(
                f'{setting}.columns is missing: name the columns in their order, such as ["site", "temp"]'
            )
        return cls(section.columns, section.delimiter or ",", section.decimal or ".")

    def encode(self, content: Any) -> bytes:
        """The line of a mapping or Struct. Fields that are no column are left out."""
        content = msgspec.to_builtins(content)
        line = io.StringIO()
        values = [self._written(content.get(name)) for name in self._columns]
        csv.writer(line, lineterminator="", delimiter=self._delimiter).writerow(values)
        return line.getvalue().encode()

    def _written(self, value: Any) -> Any:
        if value is None:
            return ""
        return str(value).replace(".", ",") if self._decimal == "," and isinstance(value, float) else value

    def _read(self, value: bytes) -> dict[str, str | None]:
        text = value.decode("utf-8-sig").rstrip("\r\n")
        line = split_line(text, self._delimiter)
        if line[0].strip() in (self._columns[0], self._header[0]) and self._is_header(
            [text.strip() for text in line]
        ):
            raise IgnoredRecord("header")
        if len(line) != len(self._columns):
            raise ValueError(self._why_not(text, len(line)))
        if self._decimal == ",":
            line = [with_point(text) for text in line]
        return dict(zip(self._columns, [text or None for text in line], strict=True))

    def _is_header(self, names: list[str]) -> bool:
        return any(names) and names in (self._columns, self._header)

    def _why_not(self, text: str, count: int) -> str:
        if not text.strip():
            return "an empty line"
        found = (
            f"{count} value{'' if count == 1 else 's'}, {len(self._columns)} are expected, one for each of "
            "columns"
        )
        marks = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
        own = marks.pop(self._delimiter, repr(self._delimiter))
        others = [mark for mark in marks if text.count(mark) + 1 == len(self._columns)]
        if count > 1 or not others:
            return found
        hint = f"delimiter = {json.dumps(others[0])} reads it"
        return f"{found}; they are separated by {own}, and this line has {marks[others[0]]}: {hint}"
