"""Checks JSON against its JSON Schema, from a registry or a file.

Only references that the registry names for a schema are fetched. The time to match a pattern grows only with
the text, because the text is a stranger's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jsonschema_rs
import msgspec

from streamfl.contract.role import BadRecord, ConfigurationError
from streamfl.records.formats import FormatKeys
from streamfl_connectors.framing import LENGTH, framed, is_framed, no_schema, number_of
from streamfl_connectors.registry import Registry, Schema

__all__ = ["Checked"]

Decoded = TypeVar("Decoded")

MOST_SCHEMAS = 1_000
# Most characters of an error text about a schema, and what it shows for a record's own value, which may be
# long.
MOST_TOLD, VALUE = 300, "its value"
_anything = msgspec.json.Decoder(Any).decode


class Checked:
    """Finds the schema of a record and checks the record against it.

    own: the schema of all records, whatever they name.
    registry: has the schemas that records name.
    subject: records that streamfl writes name its newest schema.
    """

    def __init__(self, own: Any | None, registry: Registry | None, subject: str) -> None:
        self._own = own
        self._registry = registry
        self._subject = subject
        self._written: int | None = None
        self._known: dict[int, Any] = {}

    @classmethod
    def for_topic(cls, section: FormatKeys, setting: str) -> Checked:
        """Made from a topic's section; ConfigurationError if there is no schema."""
        own = None
        if section.schema_file is not None:
            try:
                own = _validator(Schema("JSON", Path(section.schema_file).read_text(encoding="utf-8")))
            except (OSError, ValueError) as error:
                raise ConfigurationError(
                    f"{setting}.schema_file = {section.schema_file!r}: {error}"
                ) from None
        if own is None and section.registry is None:
            raise no_schema(section, setting)
        registry = None if section.registry is None else Registry(section.registry)
        return cls(own, registry, f"{getattr(section, 'topic', '')}-value")

    def decoder(self, decode: Callable[[bytes], Decoded]) -> Callable[[bytes], Decoded]:
        """``decode`` for what the schema allows; BadRecord for other records, NotYetReadable while the
        registry does not answer."""

        def checked(value: bytes) -> Decoded:
            validator, content = self._validator_of(value)
            try:
                validator.validate(_anything(content))
            except jsonschema_rs.ValidationError as error:
                place = "".join(
                    f"[{one}]" if isinstance(one, int) else f".{one}" for one in error.instance_path
                ).lstrip(".")
                raise BadRecord(
                    "malformed", f"its schema refuses {place or 'the record'}: {error.message[:MOST_TOLD]}"
                ) from None
            except ValueError as error:
                raise BadRecord(
                    "malformed", f"it cannot be validated against its schema: {str(error)[:MOST_TOLD]}"
                ) from None
            return decode(content)

        return checked

    def named(self, content: bytes) -> bytes:
        """The content to write, after its schema's number unless the schema is in a file."""
        if self._own is not None:
            return content
        if self._written is None:
            assert self._registry is not None
            self._written, _ = self._registry.latest(self._subject)
        return framed(self._written, content)

    def _validator_of(self, value: bytes) -> tuple[Any, bytes]:
        content = value[LENGTH:] if is_framed(value) else value
        if self._own is not None:
            return self._own, content
        number = number_of(value)
        if number not in self._known:
            assert self._registry is not None
            schema = self._registry.schema(number)
            try:
                found = _validator(schema)
            except ValueError as error:
                raise BadRecord("unknown_schema", f"schema {number} of the registry: {error}") from None
            if len(self._known) >= MOST_SCHEMAS:
                del self._known[next(iter(self._known))]
            self._known[number] = found
        return self._known[number], content


def _validator(schema: Schema) -> Any:
    """A validator that checks records against a schema; ValueError if none can be made."""
    if schema.kind != "JSON":
        raise ValueError(f"it is of the kind {schema.kind}, JSON is expected")

    def referred(address: str) -> Any:
        for name, text in schema.references:
            if address == name or address.endswith("/" + name.lstrip("/")):
                return json.loads(text)
        raise ValueError(f"it refers to {address}, which the registry does not name among its references")

    try:
        content = json.loads(schema.text)
        options = jsonschema_rs.RegexOptions()
        return jsonschema_rs.validator_for(content, retriever=referred, mask=VALUE, pattern_options=options)
    except (ValueError, RecursionError) as error:
        text = str(getattr(error, "message", error))[:MOST_TOLD]
        raise ValueError(f"this JSON Schema cannot validate records: {text}") from None
