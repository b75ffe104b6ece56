"""``streamfl write``: writes lines of JSON to a topic that a role reads from its users."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import IO, Annotated, Any, cast

import typer

from streamfl.cli.named_topics import format_of_channel, users_channels
from streamfl.cli.preflight import Configured, read_configuration
from streamfl.contract.channels import Input
from streamfl.contract.role import (
    BadRecord,
    ConfigurationError,
    DataError,
    IgnoredRecord,
    NotYetReadable,
    Record,
)
from streamfl.encoding.wire import MAXIMUM_BYTES
from streamfl.records.formats import Format, format_named
from streamfl.records.json_lines import json_line
from streamfl.records.keys import WITHOUT_KEY, KeySection, key_writer
from streamfl.records.paths import ABSENT, named_in
from streamfl.runtime.bus import BusUnavailable, Outgoing
from streamfl.terminal.console import ConfigArgument, FormatOption, OutputFormat, print_json, say
from streamfl.terminal.words import counted

__all__ = ["write"]

CHUNK_BYTES = 65_536


def write(
    config: ConfigArgument,
    what: Annotated[
        str, typer.Argument(help="samples, or labels where they come on a topic of their own.")
    ] = "samples",
    key: Annotated[
        str | None,
        typer.Option(
            help="The field, or path, whose value is the record's key; left out: the client or entity named."
        ),
    ] = None,
    as_they_are: Annotated[
        bool,
        typer.Option(
            "--as-they-are", help="Write lines that the role would refuse, too: they go to the dead letters."
        ),
    ] = False,
    format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Write the lines of stdin, a JSON object each, to a topic that the role reads from its users, in the
    form that it expects.

    A line that the role would refuse ends the command with exit code 5; the lines before it are written.
    """
    configured = read_configuration(config)
    topics = users_channels(configured)
    if what not in topics:
        known = ", ".join(topics) or "none"
        raise ConfigurationError(
            f"{what!r}: a {configured.kind.name} reads no such topic from its users; it reads {known}"
        )
    topic = topics[what]
    lines = _Lines(configured, what, key, as_they_are)
    written = 0
    with closing(configured.connect()) as bus:
        if not bus.describe([topic]):
            raise ConfigurationError(
                f"topic {topic} does not exist: streamfl topics {config} --create-inputs"
            )
        for batch in _batches(sys.stdin.buffer):
            records: list[Outgoing] = []
            wrong: DataError | None = None
            try:
                for line in batch:
                    if (record := lines.record(line)) is not None:
                        records.append(record)
            except DataError as error:
                wrong = error
            bus.write(records)
            written += len(records)
            if wrong is not None:
                # A user who corrects the line and writes all of them again would write those before it twice.
                before = f"Of the lines before it {counted(written, 'record')} came into {topic}"
                raise DataError(f"{wrong}. {before}: go on from this line")
    if format is OutputFormat.JSON:
        print_json({"topic": topic, "records": written})
    else:
        say(f"wrote {counted(written, 'record')} to {topic}")


class _Lines:
    """Makes records of lines, each checked by the role's own decoder."""

    def __init__(self, configured: Configured, what: str, key: str | None, as_they_are: bool) -> None:
        self._source: Input = configured.kind.channels(configured.settings).inputs[what]
        self._format: Format = format_of_channel(configured, what) or format_named("json")
        self._key = key
        section: Any = getattr(configured.settings, what, None)
        self._key_of = key_writer(section) if isinstance(section, KeySection) else str.encode
        self._as_they_are = as_they_are
        self._number = 0

    def record(self, line: bytes) -> Outgoing | None:
        """The record of a line; None for an empty line. DataError names the line and its mistake."""
        self._number += 1
        if not line.strip():
            return None
        content = json_line(line, self._number, cast(type[Any], Any))
        try:
            value = self._format.encode(content)
        except (ValueError, TypeError) as error:
            raise DataError(
                f"line {self._number}: cannot be written as {type(self._format).__name__}: {error}"
            ) from None
        key = self._named_key(content)
        try:
            record = Record(self._source.topic, 0, 0, key, value)
            message = self._source.decode(record)
            # The user also gets errors that the role would not report.
            for decode in self._source.strict:
                decode(record)
        except BadRecord as error:
            if self._as_they_are:
                return Outgoing(self._source.topic, key, value)
            how = "--key FIELD makes a field's value the key. " if WITHOUT_KEY in error.text else ""
            raise DataError(
                f"line {self._number}: {error}. {how}--as-they-are writes such lines, too"
            ) from None
        except IgnoredRecord:
            return Outgoing(self._source.topic, key, value)
        except NotYetReadable as error:
            raise BusUnavailable(str(error)) from None
        if key is None:
            name = str(getattr(message, "client", ""))
            key = self._written_key(name) if name else None
        return Outgoing(self._source.topic, key, value)

    def _named_key(self, content: Any) -> bytes | None:
        if self._key is None:
            return None
        found = named_in(content, self._key)
        if found is None or found is ABSENT:
            raise DataError(f"line {self._number}: has no field {self._key!r}, which --key names")
        return self._written_key(str(found))

    def _written_key(self, name: str) -> bytes:
        try:
            return self._key_of(name)
        except ValueError as error:
            raise DataError(f"line {self._number}: {error}") from None


def _batches(source: IO[bytes]) -> Iterator[list[bytes]]:
    """Whole lines as they come, so that each line of a growing file is written at once."""
    read = getattr(source, "read1", source.read)
    rest = b""
    while chunk := read(CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAXIMUM_BYTES:
            raise DataError(f"a line has more than {MAXIMUM_BYTES} bytes, and no record may have so many")
        if lines:
            yield lines
    if rest:
        yield [rest]
