"""The role kinds of `streamfl rekey`: which topics they read and write, from a role's own settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.channel_table import USER, Channel, ChannelTable
from streamfl.contract.dealt import Dealt
from streamfl.contract.role import ConfigurationError
from streamfl.records.formats import Format, format_of
from streamfl.records.header_propagation import FollowedPredictions, carried
from streamfl.records.keys import KeySection, key_reader, key_writer
from streamfl.records.paths import path_of
from streamfl.records.rekey import AssembleSection, RekeySection
from streamfl.rekeying.assembly import Assembled, Assembly, AssemblyMetrics, Together, client_of
from streamfl.rekeying.assembly_rows import decode_row
from streamfl.rekeying.reader import RekeyReader, RowReader, with_infinities
from streamfl.rekeying.role import Rekeying, RekeyingMetrics
from streamfl.roles.role_kind import RoleKind
from streamfl.state.state_settings import StateSettings

__all__ = ["STREAMS", "Stream", "rekey_kind", "streams_of"]

STREAMS = ("samples", "labels")
# Formats of rewritten records. A schema describes the user's own records, not these.
WRITTEN = ("json", "msgpack")


@dataclass(frozen=True)
class Stream:
    """A role's topic that `streamfl rekey` writes.

    name: of its section.
    target: that section.
    source: topic and format of the records to read.
    by: the field with the key.
    """

    name: str
    target: KeySection
    source: KeySection
    by: str | None
    assemble: AssembleSection | None

    @property
    def as_it_is(self) -> bool:
        """Whether a record's bytes can go on as they are."""
        of = {key: value for key, value in self.source.of_topic.items() if key != "topic"}
        return of == {key: value for key, value in self.target.of_topic.items() if key != "topic"}

    @property
    def fields(self) -> list[str]:
        """The inputs and the label of a sample that comes in several records."""
        assert self.assemble is not None
        if self.assemble.fields is not None:
            return self.assemble.fields
        inputs, features = getattr(self.target, "inputs", None), getattr(self.target, "features", None)
        if inputs is not None:
            # Every record has the time and the key, so they are no inputs of a sample.
            features = [
                one.field for one in inputs if one.field not in (self.assemble.time, _keyed_by(self.target))
            ]
        if not isinstance(features, list):
            raise ConfigurationError(
                f"{self.name}.assemble.fields is missing: say what a sample consists of, for "
                f"{self.name}.features names no fields one by one"
            )
        label = getattr(self.target, "label", None)
        return [*dict.fromkeys([*features, *([] if label is None else [label])])]


def streams_of(settings: RoleSettings) -> list[str]:
    """The sections of these settings whose topic is to be rekeyed."""
    return [name for name in STREAMS if getattr(getattr(settings, name, None), "rekey", None) is not None]


def _stream(settings: RoleSettings, name: str) -> Stream:
    target = getattr(settings, name, None)
    section = getattr(target, "rekey", None)
    if not isinstance(target, KeySection) or not isinstance(section, RekeySection):
        raise ConfigurationError(
            f"the section [{name}.rekey] is missing: it names the topic to be rekeyed to {name}.topic"
        )
    if section.topic == target.topic:
        raise ConfigurationError(
            f"{name}.rekey.topic = {section.topic!r}: {name}.topic is the output topic: name another one"
        )
    said = {key: getattr(section, key) for key in section.model_fields_set & KeySection.model_fields.keys()}
    own = {key: getattr(target, key) for key in KeySection.model_fields}
    if said.keys() - {"topic", "key", "key_field"}:
        # The source has another format, so only these keys of the target's section apply to it.
        own = {key: own[key] for key in ("registry", "key", "key_field")}
    by = section.by or getattr(target, "client", None) or getattr(target, "entity", None)
    return Stream(name, target, KeySection(**{**own, **said}), by, getattr(target, "assemble", None))


def rekey_kind(name: str) -> RoleKind[Any]:
    """The role kind of `streamfl rekey` for one of ``STREAMS``. It takes the role's settings, with another
    consumer group."""

    kind = f"rekey-{name}"

    def table(settings: RoleSettings) -> ChannelTable:
        stream = _stream(settings, name)
        rows = [
            Channel(name="source", links={(USER, kind): stream.source.topic}, decode=_decoder(stream)),
            # The section's own topic is ours to make here: nobody else writes it.
            Channel(name="keyed", links={(kind, USER): stream.target.topic}),
            # Positions are stored here too: Kafka forgets a group's offsets, and all records would be written
            # a second time. Rows are keyed by their client's name as it is, whatever the new records' keys
            # are.
            Channel(
                name="state",
                links={(kind, kind): f"{settings.group}.state"},
                state=True,
                like="source",
                dealt=Dealt(client_of, str.encode),
            ),
        ]
        if stream.assemble is not None:
            topic = f"{settings.group}.pieces"
            pieces = Channel(
                name="pieces",
                links={(kind, kind): topic},
                decode=decode_row,
                client=lambda row: row.client,
                like="source",
            )
            rows.insert(2, pieces)
        return ChannelTable(kind, rows)

    def state_settings(settings: RoleSettings) -> StateSettings:
        stream = _stream(settings, name)
        # Records are not read twice, so a new target topic would lack those that were read already.
        content: dict[str, Any] = {
            f"{name}.rekey.topic": stream.source.topic,
            f"{name}.topic": stream.target.topic,
        }
        content |= {f"{name}.key": stream.target.key}
        must_stay = {*content, f"{name}.assemble.seconds"}
        # The operator may correct it and send refused records back; the log reports that it has changed.
        content[f"{name}.rekey.by"] = stream.by
        if stream.assemble is not None:
            content |= {
                f"{name}.assemble.{key}": value
                for key, value in stream.assemble.model_dump(mode="json").items()
            }
        # With another span a place means another time. All other changes apply from the next sample on.
        return StateSettings.of(content, content.keys() - must_stay)

    def build(settings: RoleSettings) -> Rekeying:
        return _build(settings, name)

    metrics = (RekeyingMetrics, AssemblyMetrics)
    return RoleKind(kind, RoleSettings, build, table, state_settings, begins_anew=True, metrics=metrics)


def _build(settings: RoleSettings, name: str) -> Rekeying:
    stream = _stream(settings, name)
    _decoder(stream)
    assemble = stream.assemble
    if assemble is None:
        return Rekeying()
    together = Together(
        stream.fields,
        assemble.several,
        assemble.seconds,
        assemble.grace_seconds,
        assemble.expiry_seconds,
        assemble.limit,
    )
    predictions = getattr(settings, "predictions", None)
    headers = predictions if isinstance(predictions, FollowedPredictions) else FollowedPredictions()
    return Rekeying(Assembly(together), _writer(stream), carried(headers), key_writer(stream.target))


def _decoder(stream: Stream) -> Callable[..., Any]:
    source = format_of(stream.source, f"{stream.name}.rekey")
    columns = stream.source.columns
    read_key = key_reader(stream.source, f"{stream.name}.rekey")
    write_key: Callable[[str], bytes] | None = key_writer(stream.target)
    if stream.assemble is not None:
        _check_written(stream)
        return RowReader(source, stream.by, columns, stream.assemble, stream.fields, read_key).decode
    encode = None
    if not stream.as_it_is:
        _check_written(stream)
        plain = format_of(stream.target, stream.name).encode
        encode = (
            (lambda content: plain(with_infinities(content))) if stream.target.format == "json" else plain
        )
    if stream.by is None and (stream.source.key, stream.source.key_field) == (
        stream.target.key,
        stream.target.key_field,
    ):
        # A UUID as text, or an object in JSON, would be spelt another way, and partitioned apart from its
        # labels on another topic.
        write_key = None
    return RekeyReader(source, stream.by, columns, encode, read_key, write_key).decode


def _check_written(stream: Stream) -> None:
    if stream.target.format not in WRITTEN:
        raise ConfigurationError(
            f"{stream.name}.format = {stream.target.format!r}: `streamfl rekey` writes another format than "
            f"it reads here, and can write {' or '.join(WRITTEN)}"
        )


def _writer(stream: Stream) -> Callable[[Assembled], bytes]:
    """A function that encodes an assembled sample, with each field at the path that the section names."""
    target, assemble = stream.target, stream.assemble
    assert assemble is not None
    format: Format = format_of(target, stream.name)
    paths = {name: path_of(name) for name in stream.fields}
    client, identity = (
        None if text is None else path_of(text)
        for text in (_keyed_by(target), getattr(target, "sample_id", None))
    )
    time = None if assemble.time is None else path_of(assemble.time)

    def write(sample: Assembled) -> bytes:
        content: dict[str, Any] = {}
        if time is not None and sample.written is not None:
            time.put(content, sample.written)
        for name, value in sample.values.items():
            if name in paths:
                paths[name].put(content, value)
        if client is not None:
            client.put(content, sample.client)
        if identity is not None and identity != client:
            identity.put(content, _identity(sample, assemble))
        return format.encode(content)

    return write


def _keyed_by(target: KeySection) -> str | None:
    return getattr(target, "client", None) or getattr(target, "entity", None)


def _identity(sample: Assembled, assemble: AssembleSection) -> str:
    """A sample's name: the id that its records have, or the second since 1970 at which its span begins."""
    if assemble.seconds is None:
        return sample.place
    begin = int(sample.place) * assemble.seconds
    return str(int(begin)) if begin.is_integer() else repr(begin)
