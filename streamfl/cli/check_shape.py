"""Part of ``streamfl check``: whether records are whole samples, and whether labels can meet them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from streamfl.cli.findings import Finding
from streamfl.cli.preflight import Configured
from streamfl.contract.channels import Channels
from streamfl.contract.role import BadRecord, IgnoredRecord, NotYetReadable, Record
from streamfl.records.formats import format_of, is_textual
from streamfl.records.keys import KeySection
from streamfl.records.labels import Label
from streamfl.records.narrow import NarrowRecord, narrow_shape
from streamfl.records.samples import Sample
from streamfl.records.schema_inference import field_values, infer_fields
from streamfl.records.shared_names import SHARE, same_ids, same_names
from streamfl.records.times import Timestamps, TimeUnit
from streamfl.runtime.bus import Bus, Unreadable
from streamfl.terminal.words import counted

__all__ = ["look_at_join", "look_at_shape", "look_at_units", "spread"]

# The most partitions to look at, spread over all. Their first and last records show how a topic of any length
# is keyed.
SAMPLE_PARTITIONS = 8

# The first and the last N records of each of these partitions: a label's sample is near the label's own
# position.
JOIN_RECORDS = 200
# With fewer records it means nothing that none meet.
ENOUGH = 20
WRITTEN_ANEW = "`streamfl rekey` writes each label where it belongs: name your topic in [labels.rekey]"

# Any number is a time. In a smaller unit than its own it is one in the first weeks since 1970.
FIRST_YEAR_SECONDS = 365 * 86_400.0

Named = list[tuple[Record, str, str]]
"""Records, each with its client and its sample's name."""


def look_at_shape(configured: Configured, records: Sequence[Record]) -> Iterator[Finding]:
    """Whether each of these samples has only one value of several: the model would then learn a mixture of
    all."""
    section: Any = getattr(configured.settings, "samples", None)
    if not isinstance(section, KeySection) or getattr(section, "assemble", None) is not None:
        return
    name = getattr(section, "client", None) or getattr(section, "entity", None)
    readings = []
    contents = _contents(section, records)
    for record, content in zip(records, contents, strict=True):
        if content is not None:
            found = None if name is None else content.get(name)
            readings.append(
                NarrowRecord(repr(record.key) if found is None else str(found), record.timestamp, content)
            )
    besides = [one for one in (name, getattr(section, "sample_id", None)) if one is not None]
    read = [dict(reading.content) for reading in readings]
    guesses = infer_fields(read, besides, is_textual(format_of(section)), section.columns)
    narrow = narrow_shape(readings, guesses, section.columns)
    if narrow is not None:
        yield Finding(
            f"shape of {section.topic}",
            True,
            f"{narrow.told()}. Several records seem to form one sample, but each is learnt as a sample of "
            "its own",
            "[samples.assemble] puts them together; `streamfl init` writes it. If each record is a complete "
            "sample, nothing needs to be done",
            warns=True,
        )


def look_at_units(configured: Configured, records: Sequence[Record]) -> Iterator[Finding]:
    """Whether times that are numbers are in another unit than the settings say."""
    section: Any = getattr(configured.settings, "samples", None)
    inputs = [one for one in getattr(section, "inputs", None) or () if one.unit is not None]
    if not isinstance(section, KeySection) or not inputs:
        return
    found = _values(section, records)
    told = []
    for field, unit in dict.fromkeys((one.field, one.unit) for one in inputs):
        times = _times(unit, found.get(field, []))
        early = sum(0 <= seconds < FIRST_YEAR_SECONDS for seconds in times)
        if early > len(times) / 2:
            told.append(
                f'{early} of {counted(len(times), "value")} of {field} are in 1970 with unit = "{unit}"'
            )
    if told:
        yield Finding(
            f"times of {section.topic}",
            True,
            "; ".join(told),
            'set unit: a time of today is 1.8e9 seconds ("s"), 1.8e12 milliseconds ("ms") or 1.8e15 '
            'microseconds ("us") since 1970',
            warns=True,
        )


def look_at_join(configured: Configured, bus: Bus, channels: Channels) -> Iterator[Finding]:
    """Whether labels on a topic of their own match samples, judged by the first and the last records of some
    partitions."""
    samples, labels = (getattr(configured.settings, name, None) for name in ("samples", "labels"))
    inputs = channels.inputs
    if (
        not isinstance(samples, KeySection)
        or not isinstance(labels, KeySection)
        or not {"samples", "labels"} <= inputs.keys()
    ):
        return
    states = bus.describe([samples.topic, labels.topic])
    if len({state.partitions for state in states.values() if state.error is None}) != 1 or len(states) < 2:
        # The topics themselves are wrong, which another finding reports.
        return
    partitions = spread(states[samples.topic].partitions)
    try:
        ours = _named(channels, "samples", bus.peek(samples.topic, partitions, JOIN_RECORDS))
        theirs = _named(channels, "labels", bus.peek(labels.topic, partitions, JOIN_RECORDS))
    except Unreadable:
        return
    if not ours or not theirs:
        return
    # In a vertical system the entity names the sample, without an id.
    by_id = getattr(labels, "sample_id", None) is not None
    places = {(record.partition, client, name if by_id else "") for record, client, name in ours}
    met = sum((record.partition, client, name if by_id else "") in places for record, client, name in theirs)
    looked = f"{counted(len(theirs), 'label')} and {counted(len(ours), 'sample')} that were looked at"
    check = f"labels of {labels.topic}"
    if met:
        yield Finding(
            check,
            True,
            f"{met} of {counted(len(theirs), 'label')} meet one of {counted(len(ours), 'sample')}",
        )
    elif {(client, name) for _, client, name in theirs} & {
        (client, name) for _, client, name in ours
    } and by_id:
        where = "in another partition than its sample"
        yield Finding(check, False, f"none of {looked} meet: each lies {where}", WRITTEN_ANEW)
    elif (found := _names_elsewhere(samples, labels, ours, theirs, by_id)) is not None:
        yield Finding(check, False, f"none of {looked} meet: {found[0]}", found[1])
    elif len(theirs) >= ENOUGH and len(ours) >= ENOUGH:
        detail = f"none of {looked} meet. The others may: these are the first and the last of each partition"
        yield Finding(
            check, True, detail, "see that both name a sample in the same way, by client and id", warns=True
        )


def spread(partitions: int) -> list[int]:
    """The partitions to look at, spread evenly over all."""
    count = min(partitions, SAMPLE_PARTITIONS)
    return [index * partitions // count for index in range(count)]


def _names_elsewhere(
    samples: KeySection, labels: KeySection, ours: Named, theirs: Named, by_id: bool
) -> tuple[str, str] | None:
    """If labels name client or id differently than samples: the fields with the same names, and what to do.
    None: not found."""
    our_fields = _values(samples, [record for record, _, _ in ours])
    their_fields = _values(labels, [record for record, _, _ in theirs])
    label = getattr(labels, "label", None)
    their_fields = {path: values for path, values in their_fields.items() if path != label}
    named = "client" if hasattr(samples, "client") else "entity"
    clients = {client for _, client, _ in ours}
    if sum(client in clients for _, client, _ in theirs) < SHARE * len(theirs):
        field = same_names(clients, their_fields)
        shown = f"a label's {named} is {theirs[0][1]!r}, a sample's is {ours[0][1]!r}"
        if field is not None:
            remedy = (
                f'set labels.{named} = "{field}". Do labels then lie in other partitions than their samples? '
                f"{WRITTEN_ANEW}"
            )
            return f"{shown}; the field {field} of the labels has the samples' names", remedy
        others = {client for _, client, _ in theirs}
        if (field := same_names(others, our_fields)) is not None:
            return f"{shown}; the labels' names are those in the field {field} of the samples", (
                f"labels have to name the {named} as well as the sample: add it to them"
                + (f", and set samples.sample_id = {field!r}" if by_id else "")
            )
        return None
    ids = {name for _, _, name in ours}
    if not by_id or any(name in ids for _, _, name in theirs):
        return None
    besides = {getattr(section, "client", None) for section in (samples, labels)}
    found = same_ids(
        {path: values for path, values in our_fields.items() if path not in besides},
        {path: values for path, values in their_fields.items() if path not in besides},
    )
    if found is None:
        return None
    field, other, common = found
    shown = f"a label's sample is {theirs[0][2]!r}, a sample's name is {ours[0][2]!r}"
    told = f"{shown}; {field} of the samples and {other} of the labels have {common} names in common"
    return told, f'set samples.sample_id = "{field}" and labels.sample_id = "{other}"'


def _times(unit: TimeUnit, values: Sequence[Any]) -> list[float]:
    read, found = Timestamps(unit), []
    for value in values:
        with suppress(BadRecord):
            found.append(read.read(value, ""))
    return found


def _named(channels: Channels, channel: str, records: Sequence[Record]) -> Named:
    found: Named = []
    for record in records:
        try:
            message = channels.inputs[channel].decode(record)
        except (BadRecord, IgnoredRecord, NotYetReadable):
            continue
        if isinstance(message, Sample):
            found.append((record, message.client, message.id))
        elif isinstance(message, Label):
            found.append((record, message.client, message.sample))
    return found


def _values(section: KeySection, records: Sequence[Record]) -> dict[str, list[Any]]:
    contents = [content for content in _contents(section, records) if content is not None]
    return field_values(contents, section.columns)


def _contents(section: KeySection, records: Sequence[Record]) -> list[dict[str, Any] | None]:
    decode = format_of(section).decoder(Any)
    found: list[dict[str, Any] | None] = []
    for record in records:
        try:
            content = decode(record.value or b"")
        except (ValueError, msgspec.DecodeError, RecursionError, BadRecord, IgnoredRecord, NotYetReadable):
            content = None
        found.append(content if isinstance(content, dict) else None)
    return found
