"""Protobuf, with the number of a registry's schema before each record, or with the schema in a file.

Google's own library reads it, with its bounds of depth. protoc compiles a schema's text, once for each
schema, in a process of its own.
"""

from __future__ import annotations

import base64
import binascii
import functools
import subprocess
import sys
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any, cast

import msgspec

from streamfl.contract.role import BadRecord, ConfigurationError
from streamfl.records.formats import FormatKeys
from streamfl_connectors.framing import framed, missing_extra, no_schema, number_of, with_indexes
from streamfl_connectors.plain_content import PlainContent
from streamfl_connectors.registry import MOST_SCHEMAS, Registry, Schema

__all__ = ["Messages", "Protobuf"]

PROTOC_SECONDS = 30.0
WELL_KNOWN = {
    "any",
    "api",
    "descriptor",
    "duration",
    "empty",
    "field_mask",
    "struct",
    "timestamp",
    "type",
    "wrappers",
}
WRAPPERS = {
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String")
}
STRUCTURES = {"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"}
TIMES = {"google.protobuf.Timestamp", "google.protobuf.Duration"}


class Messages:
    """The messages of a compiled schema.

    files: descriptor sets' files in any order.
    name: of the file that has the records' messages.
    """

    def __init__(self, files: list[Any], name: str) -> None:
        from google.protobuf import descriptor_pool

        self._pool = descriptor_pool.DescriptorPool()
        by_name = {file.name: file for file in files}
        added: set[str] = set()

        def add(file: str) -> None:
            if file in added:
                return
            added.add(file)
            content = by_name.get(file) or _well_known(file)
            for needed in content.dependency:
                add(needed)
            self._pool.Add(content)

        try:
            add(name)
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"the Protobuf schema cannot be used: {error}") from None
        self._file = by_name[name]
        self._classes: dict[str, Any] = {}

    @classmethod
    def of_text(
        cls, text: str, references: tuple[tuple[str, str], ...] = (), folder: Path | None = None
    ) -> Messages:
        """From a ``.proto``'s text. references: files that it imports. folder: where others are. ValueError
        if it is broken."""
        from google.protobuf import descriptor_pb2

        name = "streamfl.proto"
        with tempfile.TemporaryDirectory(prefix="streamfl-") as directory:
            for file, content in ((name, text), *references):
                path = PurePosixPath(file)
                if path.is_absolute() or ".." in path.parts:
                    raise ValueError(
                        f"a schema is imported as {file!r}, a path below the schema's own is expected"
                    )
                place = Path(directory, path)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(content, encoding="utf-8")
            compiled = Path(directory, "compiled")
            folders = [f"-I{place}" for place in (directory, folder) if place is not None]
            command = [
                "grpc_tools.protoc",
                *folders,
                "--include_imports",
                f"--descriptor_set_out={compiled}",
                name,
            ]
            try:
                said = subprocess.run(
                    [sys.executable, "-m", *command],
                    capture_output=True,
                    text=True,
                    timeout=PROTOC_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise ValueError(f"protoc took longer than {PROTOC_SECONDS:g} s") from None
            if said.returncode:
                if "No module named" in said.stderr:
                    raise ValueError("a schema as text needs grpcio-tools: pip install 'streamfl[protobuf]'")
                raise ValueError(f"protoc: {said.stderr.strip()[:300]}")
            files = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes())
        return cls(list(files.file), name)

    @classmethod
    def of_set(cls, content: bytes) -> Messages:
        """From a descriptor set as protoc writes it with ``--include_imports``; its last file has the
        messages. Or ValueError."""
        from google.protobuf import descriptor_pb2, message

        try:
            files = list(descriptor_pb2.FileDescriptorSet.FromString(content).file)
        except message.DecodeError as error:
            raise ValueError(f"not a descriptor set: {error}") from None
        if not files:
            raise ValueError("a descriptor set without a file")
        return cls(files, files[-1].name)

    @classmethod
    def of_schema(cls, schema: Schema) -> Messages:
        """From a registry's schema, as descriptors in base64 or as text. ValueError if it is neither."""
        from google.protobuf import descriptor_pb2, message

        def descriptor(text: str, name: str) -> Any:
            found = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
            found.name = name
            return found

        try:
            files = [descriptor(text, name) for name, text in schema.references]
            return cls([*files, descriptor(schema.text, "streamfl.proto")], "streamfl.proto")
        except (binascii.Error, ValueError, message.DecodeError):
            return cls.of_text(schema.text, schema.references)

    def name_at(self, indexes: tuple[int, ...]) -> str:
        """The full name of the message at this place of the schema; ValueError if there is none."""
        found, name = self._file.message_type, self._file.package
        for index in indexes:
            if not 0 <= index < len(found):
                raise ValueError(f"the schema has no message at {list(indexes)}")
            name = f"{name}.{found[index].name}" if name else found[index].name
            found = found[index].nested_type
        return str(name)

    def place_of(self, name: str) -> tuple[int, ...]:
        """The place in the schema of the message with this full name; ValueError if there is none."""
        places: list[tuple[int, ...]] = [(index,) for index in range(len(self._file.message_type))]
        while places:
            place = places.pop(0)
            if self.name_at(place) == name:
                return place
            inner = self._file.message_type
            for index in place:
                inner = inner[index].nested_type
            places += [(*place, index) for index in range(len(inner))]
        raise ValueError(f"the schema has no message {name!r}")

    def only_one(self) -> str:
        """The full name of the only message; ValueError if there are several."""
        if len(self._file.message_type) != 1:
            names = ", ".join(self.name_at((index,)) for index in range(len(self._file.message_type)))
            raise ValueError(f"the schema has several messages: give the full name of one ({names})")
        return self.name_at((0,))

    def class_of(self, name: str) -> Any:
        """The class of a message; ValueError if there is none."""
        if name not in self._classes:
            from google.protobuf import message_factory

            try:
                self._classes[name] = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))
            except KeyError:
                raise ValueError(f"the schema has no message {name!r}") from None
        return self._classes[name]

    def read(self, name: str, content: bytes) -> dict[str, Any]:
        """The fields of a message; ValueError if it is not one. A field that was not set and has no default
        is left out."""
        from google.protobuf.message import DecodeError

        found = self.class_of(name)()
        try:
            found.ParseFromString(content)
        except DecodeError as error:
            raise ValueError(f"it does not fit the Protobuf message {name}: {error}") from None
        return _fields(found)

    def write(self, name: str, content: Any) -> bytes:
        """The bytes of a message; ValueError if the content does not fit."""
        from google.protobuf import json_format

        try:
            return cast(
                bytes,
                json_format.ParseDict(content, self.class_of(name)()).SerializeToString(deterministic=True),
            )
        except json_format.ParseError as error:
            raise ValueError(f"this does not fit the Protobuf message {name}: {error}") from None


class Protobuf(PlainContent):
    """Records in Protobuf.

    messages: of all records; None: each record names its schema in the registry.
    message: the full name of all records' message; None: the record or the schema says it.
    subject: ``encode`` writes with its newest schema.
    """

    takes = ("schema_file", "message")

    def __init__(
        self,
        messages: Messages | None,
        message: str | None = None,
        registry: Registry | None = None,
        subject: str = "",
    ) -> None:
        self._messages = messages
        self._message = message
        self._registry = registry
        self._subject = subject
        self._known: dict[int, Messages] = {}
        self._writer: tuple[int, Messages] | None = None

    @classmethod
    def for_topic(cls, section: FormatKeys, setting: str) -> Protobuf:
        """The format of a topic; ConfigurationError if there is no schema, or protobuf is not installed."""
        try:
            import google.protobuf  # noqa: F401
        except ImportError as missing:
            raise missing_extra(setting, section.format, "protobuf", missing) from None
        if section.schema_file is not None:
            path = Path(section.schema_file)
            try:
                if path.suffix == ".proto":
                    messages = Messages.of_text(path.read_text(encoding="utf-8"), folder=path.parent)
                else:
                    messages = Messages.of_set(path.read_bytes())
            except (OSError, ValueError) as error:
                raise ConfigurationError(
                    f"{setting}.schema_file = {section.schema_file!r}: {error}"
                ) from None
            try:
                message = section.message or messages.only_one()
                messages.class_of(message)
            except ValueError as error:
                raise ConfigurationError(f"{setting}.message: {error}") from None
            return cls(messages, message)
        if section.registry is None:
            raise no_schema(section, setting)
        registry = Registry(section.registry, serialized=True)
        return cls(None, section.message, registry, f"{getattr(section, 'topic', '')}-value")

    def encode(self, content: Any) -> bytes:
        """The bytes of a mapping or Struct, by the file's schema or the newest of the registry."""
        content = msgspec.to_builtins(content)
        if self._messages is not None:
            return self._messages.write(self._message or self._messages.only_one(), content)
        if self._writer is None:
            assert self._registry is not None
            number, schema = self._registry.latest(self._subject)
            self._writer = number, Messages.of_schema(schema)
        number, messages = self._writer
        name = self._message or messages.name_at((0,))
        place = messages.place_of(name)
        indexes = b"\0" if place == (0,) else b"".join(_zigzag(one) for one in (len(place), *place))
        return framed(number, indexes + messages.write(name, content))

    def _read(self, value: bytes) -> Any:
        if self._messages is not None:
            return self._messages.read(self._message or self._messages.only_one(), value)
        number = number_of(value)
        messages = self._known.get(number)
        if messages is None:
            assert self._registry is not None
            schema = self._registry.schema(number)
            if schema.kind != "PROTOBUF":
                raise BadRecord("malformed", f"the schema {number} is one of {schema.kind}, not of PROTOBUF")
            if len(self._known) >= MOST_SCHEMAS:
                del self._known[next(iter(self._known))]
            messages = self._known[number] = Messages.of_schema(schema)
        indexes, start = with_indexes(value)
        name = messages.name_at(indexes)
        if self._message is not None and name != self._message:
            raise ValueError(f"it is a message {name}, {self._message} is expected")
        return messages.read(name, value[start:])


def _well_known(name: str) -> Any:
    """One of Google's own files, which every schema may import. KeyError if it is not one of them."""
    import importlib

    from google.protobuf import descriptor_pb2

    stem = name.removeprefix("google/protobuf/").removesuffix(".proto")
    if stem not in WELL_KNOWN:
        raise KeyError(f"it imports {name!r}, which is missing")
    found = descriptor_pb2.FileDescriptorProto()
    importlib.import_module(f"google.protobuf.{stem}_pb2").DESCRIPTOR.CopyToProto(found)
    return found


@functools.lru_cache(maxsize=MOST_SCHEMAS)
def _plan(descriptor: Any) -> tuple[list[str], list[Any]]:
    """The names of the fields that are always there as plain values, and the other fields."""
    names: list[str] = []
    others: list[Any] = []
    for field in descriptor.fields:
        plain = not (
            field.is_repeated
            or field.has_presence
            or field.enum_type is not None
            or field.message_type is not None
        )
        if plain:
            names.append(field.name)
        else:
            others.append(field)
    return names, others


def _fields(message: Any) -> dict[str, Any]:
    names, others = _plan(message.DESCRIPTOR)
    content: dict[str, Any] = {name: getattr(message, name) for name in names}
    for field in others:
        name = field.name
        if field.is_repeated:
            values = getattr(message, name)
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                of = field.message_type.fields_by_name["value"]
                content[name] = {str(key): _plain(of, values[key]) for key in values}
            else:
                content[name] = [_plain(field, value) for value in values]
        elif not field.has_presence or message.HasField(name):
            content[name] = _plain(field, getattr(message, name))
    return content


def _plain(field: Any, value: Any) -> Any:
    """A field's value as plain content: a time in seconds, an enum by its name."""
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if field.message_type is None:
        return value
    name = field.message_type.full_name
    if name in TIMES:
        return value.seconds + value.nanos * 1e-9
    if name in WRAPPERS:
        return value.value
    if name in STRUCTURES:
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(value)
    return _fields(value)


def _zigzag(number: int) -> bytes:
    number = number << 1
    content = bytearray()
    while number > 0x7F:
        content.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*content, number])
