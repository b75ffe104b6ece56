"""Avro, with the number of a registry's schema before each record, or with the schema in a file.

Fastavro reads it: it is the fastest library for Python, and well maintained. It follows a record's structure
without any bound. So a schema is refused if few bytes could become many values, or if the depth has no bound.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from streamfl.contract.role import BadRecord, ConfigurationError
from streamfl.records.formats import FormatKeys
from streamfl_connectors.framing import LENGTH, framed, missing_extra, no_schema, number_of
from streamfl_connectors.plain_content import PlainContent
from streamfl_connectors.registry import MOST_SCHEMAS, Registry, Schema

__all__ = ["Avro", "AvroSchema", "schema_of"]

Convert = Callable[[Any], Any]

WIDTHS = {"null": 0, "boolean": 1, "int": 1, "long": 1, "bytes": 1, "string": 1, "float": 4, "double": 8}
PLAIN: dict[type[Any], str] = {
    msgspec.inspect.NoneType: "null",
    msgspec.inspect.BoolType: "boolean",
    msgspec.inspect.IntType: "long",
    msgspec.inspect.FloatType: "double",
    msgspec.inspect.StrType: "string",
}
# Most bytes of a decimal's unscaled value: more than any database has.
LONGEST_DECIMAL = 64
BROKEN = (
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    ValueError,
    OverflowError,
    ArithmeticError,
    RecursionError,
)


class AvroSchema:
    """A schema to read and write records with.

    text: the schema in JSON.
    references: the schemas that it names, each after those that it names itself. ValueError if the text is no
    schema, or its records could not be read with a bound. A decimal is read as a number. Times stay whole
    numbers, in the schema's unit.
    """

    def __init__(self, text: str, references: tuple[tuple[str, str], ...] = ()) -> None:
        import fastavro

        named: dict[str, Any] = {}
        try:
            for _, reference in references:
                fastavro.parse_schema(json.loads(reference), named)
            self._logical = fastavro.parse_schema(json.loads(text), named)
            _least_bytes(self._logical, named, (), {})
            self._convert = _converter(self._logical, named)
            plain_names: dict[str, Any] = {}
            for _, reference in references:
                fastavro.parse_schema(_without_logical_types(json.loads(reference)), plain_names)
            self._plain = fastavro.parse_schema(_without_logical_types(json.loads(text)), plain_names)
        except ImportError:
            raise
        except Exception as error:
            raise ValueError(f"the Avro schema cannot be read: {error}") from None
        self._read, self._write = fastavro.schemaless_reader, fastavro.schemaless_writer

    def read(self, value: bytes, start: int = 0) -> Any:
        """The content of a record from byte ``start`` to its end; ValueError if it does not fit."""
        stream = io.BytesIO(value)
        stream.seek(start)
        try:
            content = self._read(stream, self._plain, None)
        except BROKEN as error:
            raise ValueError(f"it does not fit its Avro schema: {_why(error)}") from None
        if stream.tell() != len(value):
            raise ValueError(
                f"it does not fit its Avro schema: {len(value) - stream.tell()} bytes are left over"
            )
        return content if self._convert is None else self._convert(content)

    def write(self, content: Any) -> bytes:
        """The bytes of plain content; ValueError if it does not fit."""
        stream = io.BytesIO()
        try:
            self._write(stream, self._logical, content)
        except BROKEN as error:
            raise ValueError(f"this does not fit the Avro schema: {error}") from None
        return stream.getvalue()


class Avro(PlainContent):
    """Records in Avro.

    schema: the schema of all records; None: each record names one of the registry.
    subject: ``encode`` writes with its newest schema.
    """

    takes = ("schema_file",)

    def __init__(
        self, schema: AvroSchema | None, registry: Registry | None = None, subject: str = ""
    ) -> None:
        self._schema = schema
        self._registry = registry
        self._subject = subject
        self._known: dict[int, AvroSchema] = {}
        self._writer: tuple[int, AvroSchema] | None = None
        self._new: str | None = None

    @classmethod
    def for_topic(cls, section: FormatKeys, setting: str) -> Avro:
        """The format of a topic; ConfigurationError if there is no schema, or fastavro is not installed."""
        try:
            import fastavro  # noqa: F401
        except ImportError as missing:
            raise missing_extra(setting, section.format, "avro", missing) from None
        if section.schema_file is not None:
            try:
                return cls(AvroSchema(Path(section.schema_file).read_text(encoding="utf-8")))
            except (OSError, ValueError) as error:
                raise ConfigurationError(
                    f"{setting}.schema_file = {section.schema_file!r}: {error}"
                ) from None
        if section.registry is None:
            raise no_schema(section, setting)
        return cls(None, Registry(section.registry), f"{getattr(section, 'topic', '')}-value")

    @classmethod
    def for_written(cls, section: FormatKeys, setting: str, topic: str, kind: type[Any]) -> Avro:
        """The format of what streamfl writes; its schema is registered with the first record.
        ConfigurationError as above."""
        if section.registry is None:
            raise ConfigurationError(
                f'{setting}.format = "avro" needs [registry] url: readers find the schema there'
            )
        found = cls.for_topic(section, setting)
        found._subject, found._new = f"{topic}-value", json.dumps(schema_of(kind))
        return found

    def encode(self, content: Any) -> bytes:
        """The bytes of a mapping or Struct, by the file's schema or the newest of the registry."""
        content = _with_lists(msgspec.to_builtins(content, builtin_types=(bytes,)))
        if self._schema is not None:
            return self._schema.write(content)
        if self._writer is None:
            assert self._registry is not None
            if self._new is None:
                number, schema = self._registry.latest(self._subject)
            else:
                schema = Schema("AVRO", self._new)
                number = self._registry.register(self._subject, schema)
            self._writer = number, AvroSchema(schema.text, schema.references)
        return framed(self._writer[0], self._writer[1].write(content))

    def read_by(self, number: int, schema: Schema, value: bytes) -> Any:
        """The content of a record by its schema of the registry."""
        known = self._known.get(number)
        if known is None:
            if schema.kind != "AVRO":
                raise BadRecord("malformed", f"the schema {number} is one of {schema.kind}, not of AVRO")
            if len(self._known) >= MOST_SCHEMAS:
                del self._known[next(iter(self._known))]
            known = self._known[number] = AvroSchema(schema.text, schema.references)
        return known.read(value, LENGTH)

    def _read(self, value: bytes) -> Any:
        if self._schema is not None:
            return self._schema.read(value)
        number = number_of(value)
        if (known := self._known.get(number)) is not None:
            return known.read(value, LENGTH)
        assert self._registry is not None
        return self.read_by(number, self._registry.schema(number), value)


def _why(error: Exception) -> str:
    # Fastavro's text names a memory address, and is empty for a record that ends too soon. Ours is the same
    # for the same record.
    if isinstance(error, IndexError):
        return "it names a member of a union or an enum that the schema does not have"
    text = str(error)
    return "it ends too soon" if isinstance(error, EOFError) or not text else text.partition(" from <")[0]


def schema_of(kind: type[Any]) -> dict[str, Any]:
    """The Avro schema of a Struct of plain fields.

    >>> class Pair(msgspec.Struct):
    ...     name: str
    ...     value: float | None
    >>> schema_of(Pair)["fields"]
    [{'name': 'name', 'type': 'string'}, {'name': 'value', 'type': ['null', 'double'], 'default': None}]
    """
    found = msgspec.inspect.type_info(kind)
    assert isinstance(found, msgspec.inspect.StructType)
    fields = []
    for field in found.fields:
        plain = _schema_of(field.type)
        # If a record of an older schema lacks the field, its reader takes null.
        fields.append(
            {"name": field.encode_name, "type": plain} | ({"default": None} if "null" in plain else {})
        )
    return {"type": "record", "name": kind.__name__, "namespace": "streamfl", "fields": fields}


def _schema_of(found: msgspec.inspect.Type) -> Any:
    if isinstance(found, msgspec.inspect.UnionType):
        members = [_schema_of(member) for member in found.types]
        return sorted(members, key=lambda member: member != "null")
    if isinstance(found, (msgspec.inspect.ListType, msgspec.inspect.VarTupleType)):
        return {"type": "array", "items": _schema_of(found.item_type)}
    return PLAIN[type(found)]


def _with_lists(content: Any) -> Any:
    # Fastavro would take a tuple for a union's member with its name.
    if isinstance(content, dict):
        return {key: _with_lists(value) for key, value in content.items()}
    return [_with_lists(value) for value in content] if isinstance(content, (list, tuple)) else content


def _least_bytes(
    schema: Any, named: Mapping[str, Any], within: tuple[str, ...], known: dict[str, int]
) -> int:
    """The fewest bytes that a value takes. ValueError if a value could contain itself, or many values take no
    byte."""
    if isinstance(schema, str):
        if schema in WIDTHS:
            return WIDTHS[schema]
        if schema in within:
            raise ValueError(f"{schema} contains itself, so the depth of its records has no limit")
        if schema not in known:
            known[schema] = _least_bytes(named[schema], named, within, known)
        return known[schema]
    if isinstance(schema, list):
        return 1 + min(_least_bytes(member, named, within, known) for member in schema)
    kind = schema["type"]
    if kind in ("record", "error"):
        inside = (*within, schema["name"])
        return sum(_least_bytes(field["type"], named, inside, known) for field in schema["fields"])
    if kind == "enum":
        return 1
    if kind == "fixed":
        return int(schema["size"])
    if kind == "map":
        _least_bytes(schema["values"], named, within, known)
        return 1
    if kind == "array":
        if _least_bytes(schema["items"], named, within, known) == 0:
            raise ValueError("a list of zero-byte values has no limit")
        return 1
    return _least_bytes(kind, named, within, known)


def _without_logical_types(schema: Any) -> Any:
    """The schema without logical types, so that fastavro returns plain values and no times, identifiers and
    decimals."""
    if isinstance(schema, list):
        return [_without_logical_types(member) for member in schema]
    if isinstance(schema, dict):
        return {key: _without_logical_types(value) for key, value in schema.items() if key != "logicalType"}
    return schema


def _converter(schema: Any, named: Mapping[str, Any]) -> Convert | None:
    """A function that turns the decimals in a value into numbers; None if there are no decimals."""
    if isinstance(schema, str):
        return None if schema in WIDTHS else _converter(named[schema], named)
    if isinstance(schema, list):
        return _of_union({_type_of(member, named): _converter(member, named) for member in schema})
    kind = schema["type"]
    if schema.get("logicalType") == "decimal" and kind in ("bytes", "fixed"):
        scale = int(schema.get("scale", 0))
        return lambda content: _decimal(content, scale)
    if kind in ("record", "error"):
        fields = {field["name"]: _converter(field["type"], named) for field in schema["fields"]}
        return _of_record({name: convert for name, convert in fields.items() if convert is not None})
    if kind in ("array", "map"):
        inner = _converter(schema["items" if kind == "array" else "values"], named)
        if inner is None:
            return None
        if kind == "array":
            return lambda content: [inner(one) for one in content]
        return lambda content: {key: inner(one) for key, one in content.items()}
    return None if kind in ("enum", "fixed") else _converter(kind, named)


def _of_record(fields: dict[str, Convert]) -> Convert | None:
    return (
        (lambda content: {**content, **{name: convert(content[name]) for name, convert in fields.items()}})
        if fields
        else None
    )


def _of_union(members: dict[type | None, Convert | None]) -> Convert | None:
    # Chosen by the value's type: a plain value does not say which member of the union was written.
    given = {kind: convert for kind, convert in members.items() if kind is not None and convert is not None}

    def convert(content: Any) -> Any:
        found = given.get(type(content))
        return content if found is None else found(content)

    return convert if given else None


def _type_of(schema: Any, named: Mapping[str, Any]) -> type | None:
    while isinstance(schema, str) and schema not in WIDTHS:
        schema = named[schema]
    kind = schema["type"] if isinstance(schema, dict) else schema
    types: dict[Any, type] = {
        "bytes": bytes,
        "fixed": bytes,
        "record": dict,
        "error": dict,
        "map": dict,
        "array": list,
    }
    return types.get(kind) if isinstance(kind, str) else None


def _decimal(content: bytes, scale: int) -> float:
    if len(content) > LONGEST_DECIMAL:
        raise ValueError(f"a decimal of {len(content)} bytes, at most {LONGEST_DECIMAL} are accepted")
    return float(int.from_bytes(content, "big", signed=True) / 10.0**scale)
