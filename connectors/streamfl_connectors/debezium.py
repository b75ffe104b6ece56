"""Debezium's change events: the row after the change, from JSON or with a registry's schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from streamfl.contract.role import BadRecord, IgnoredRecord
from streamfl.records.fields import shown
from streamfl.records.formats import FormatKeys
from streamfl_connectors.framing import LENGTH, is_framed, missing_extra, number_of
from streamfl_connectors.plain_content import PlainContent
from streamfl_connectors.registry import Registry

__all__ = ["Debezium"]

ROW = {"c", "r", "u"}
# Events without a row: a truncation, a message in the database's log.
NO_ROW = {"t", "m"}


class Debezium(PlainContent):
    """Change events: JSON with or without its schema around it, or Avro or JSON after the number of a
    registry's schema.

    A row has the fields of ``after``, and ``__op``, ``__ts_ms`` and ``__source_ts_ms``. Rows that Debezium's
    ExtractNewRecordState unwrapped, with ``__op`` or ``__deleted`` in them, are accepted too.

    >>> Debezium(None).decoder(dict)(b'{"op": "c", "after": {"site": "north"}, "ts_ms": 5}')
    {'site': 'north', '__op': 'c', '__ts_ms': 5}
    """

    tombstones = True

    def __init__(self, registry: Registry | None) -> None:
        from streamfl_connectors.formats import Json

        self._registry = registry
        self._json = Json()
        self._anything: Callable[[bytes], Any] = self._json.decoder(cast(type[Any], Any))
        self._avro: Any = None

    @classmethod
    def for_topic(cls, section: FormatKeys, setting: str) -> Debezium:
        """The format of a topic; ConfigurationError if there is a registry and fastavro is not installed."""
        if section.registry is None:
            return cls(None)
        made = cls(Registry(section.registry))
        try:
            import fastavro  # noqa: F401

            from streamfl_connectors.avro import Avro
        except ImportError as missing:
            raise missing_extra(setting, section.format, "avro", missing) from None
        made._avro = Avro(None, made._registry)
        return made

    def encode(self, content: Any) -> bytes:
        """The creation of a row, in JSON."""
        return self._json.encode({"before": None, "after": content, "op": "c"})

    def _read(self, value: bytes) -> Any:
        content = self._content(value)
        if isinstance(content, dict) and isinstance(content.get("payload"), dict) and "schema" in content:
            content = content["payload"]
        elif (
            isinstance(content, dict)
            and content.keys() == {"schema", "payload"}
            and content["payload"] is None
        ):
            raise IgnoredRecord("tombstone")
        if not isinstance(content, dict):
            raise ValueError(f"a change event is expected, not {shown(content)}")
        op = content.get("op")
        if isinstance(op, str) and ("after" in content or op in NO_ROW or op == "d"):
            return _row(op, content)
        if content.get("__deleted") in ("true", True) or content.get("__op") == "d":
            raise IgnoredRecord("deletion")
        if "__deleted" in content or "__op" in content:
            return content
        if content.keys() == {"ts_ms"}:
            raise IgnoredRecord("no_row")
        raise ValueError("not a Debezium change event: the fields op and after are expected")

    def _content(self, value: bytes) -> Any:
        if not is_framed(value):
            return self._anything(value)
        if value[LENGTH : LENGTH + 1] == b"{" and self._registry is None:
            return self._anything(value[LENGTH:])
        if self._registry is None:
            raise ValueError(
                f"it names the schema {number_of(value)} of a schema registry: give [registry] url"
            )
        number = number_of(value)
        schema = self._registry.schema(number)
        if schema.kind == "JSON":
            return self._anything(value[LENGTH:])
        if schema.kind != "AVRO":
            raise BadRecord(
                "malformed",
                f"the schema {number} is one of {schema.kind}: AVRO or JSON is expected for Debezium",
            )
        return self._avro.read_by(number, schema, value)


def _row(op: str, event: Mapping[str, Any]) -> dict[str, Any]:
    after = event.get("after")
    if op == "d":
        raise IgnoredRecord("deletion")
    if op in NO_ROW:
        raise IgnoredRecord("no_row")
    if op not in ROW or not isinstance(after, dict):
        raise ValueError(
            f"a change event with op = {op!r} and after = {shown(after)}: c, r or u and a row are expected"
        )
    source = event.get("source")
    told = {
        "__op": op,
        "__ts_ms": event.get("ts_ms"),
        "__source_ts_ms": source.get("ts_ms") if isinstance(source, dict) else None,
    }
    return {
        **after,
        **{name: content for name, content in told.items() if content is not None and name not in after},
    }
