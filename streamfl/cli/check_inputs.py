"""Part of ``streamfl check``: decodes a few records of every input, and gives them to the role."""

from __future__ import annotations

import difflib
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from streamfl.cli.check_replies import look_at_replies, read_on
from streamfl.cli.check_shape import look_at_join, look_at_shape, look_at_units, spread
from streamfl.cli.check_state import ChangelogContents
from streamfl.cli.findings import Finding
from streamfl.cli.preflight import Configured
from streamfl.cli.unreadable import remedy as remedy_of
from streamfl.contract.channels import Channels, Decode, Input
from streamfl.contract.role import (
    BadRecord,
    ConfigurationError,
    IgnoredRecord,
    NotYetReadable,
    Received,
    Record,
    Role,
)
from streamfl.records.formats import format_of
from streamfl.records.keys import KeySection, binary_hint
from streamfl.records.labels import Label
from streamfl.records.paths import leaf_paths
from streamfl.records.samples import Sample, SamplesSection
from streamfl.runtime.bus import Bus, TopicState, Unreadable
from streamfl.terminal.printable import utc_time
from streamfl.terminal.words import counted, first_of

__all__ = ["CannotBegin", "look_at_inputs"]

SAMPLE_RECORDS = 10
# So many newest samples of a client without a label are no chance, where all before had one.
NEWEST = 3
EXAMPLES = 3
DAY = 86_400.0
KEEP_OLD_RECORDS = (
    "message.timestamp.type=LogAppendTime on the topic, or retention.ms=-1 while old records are replayed"
)
ASK_THE_REGISTRY = "see the section [registry], and the registry's own log"
# Labels that take up less of samples.label_range than this are too small for it, from so many labels on.
LEAST_SHARE, ENOUGH_LABELS = 1e-3, 20


class CannotBegin(ConfigurationError):
    """With these settings a role without state cannot begin."""


def look_at_inputs(
    configured: Configured, bus: Bus, role: Role, channels: Channels, remembered: ChangelogContents
) -> Iterator[Finding]:
    """Check the records of every input. role: with no partition open; it has received its tables, if there
    are any.

    CannotBegin if the role has no state and cannot begin without.
    """
    batch: list[Received] = []
    existing = bus.describe([source.topic for source in channels.inputs.values()])
    for channel, source in channels.inputs.items():
        state = existing.get(source.topic)
        if state is None or state.error is not None:
            continue
        try:
            records = bus.peek(source.topic, spread(state.partitions), SAMPLE_RECORDS)
        except Unreadable as failure:
            yield Finding(f"records of {source.topic}", False, str(failure), remedy_of(configured, failure))
            continue
        yield _decoded(configured, channel, source, records, batch, remembered)
        yield from _times(source.topic, state, records)
        if not records and source.sender is None:
            yield from _none_left(bus, source.topic, remembered)
        yield from _keys(configured, channel, records, remembered)
        if channel == "samples":
            yield from look_at_shape(configured, records)
            yield from look_at_units(configured, records)
    yield from _labels(configured, batch)
    yield from _label_range(configured, batch)
    yield from look_at_join(configured, bus, channels)
    try:
        if batch:
            yield from look_at_replies(configured, role, channels, batch, remembered)
        elif remembered.nothing:
            role.open(0)
            role.receive([], time.time())
    except ConfigurationError as error:
        # A role with state may have there what it lacks here.
        if remembered.nothing:
            raise CannotBegin(str(error)) from None
    except NotYetReadable as error:
        # Predictions name a schema of the registry.
        yield Finding("what it would write", False, str(error), ASK_THE_REGISTRY)


def _decoded(
    configured: Configured,
    channel: str,
    source: Input,
    records: Sequence[Record],
    batch: list[Received],
    remembered: ChangelogContents,
) -> Finding:
    """Decode records of an input, and add those that are readable to the batch."""
    wrong: list[tuple[Record, BadRecord]] = []
    remedy = f"such records go to {configured.settings.dead_letters}: correct them or the settings"
    awaited: list[str] = []
    looked = 0
    for record in records:
        looked += 1
        try:
            message = source.decode(record)
            dealing = remembered.dealing
            # A worker sends on what came before partitions were added, and does not give it to its role.
            if dealing is None or dealing.elsewhere(source, message, record.partition) is None:
                batch.append(Received(channel, message, record))
        except IgnoredRecord:
            continue
        except NotYetReadable as error:
            awaited.append(str(error))
            # One schema may be unknown. After several the rest is not tried, because each attempt waits.
            if len(awaited) == EXAMPLES:
                break
        except BadRecord as error:
            wrong.append((record, error))
    if not wrong and not awaited and (errors := _never_readable(source, records)):
        wrong = errors
        remedy = (
            "a worker takes such records in silence and learns nothing of them: correct them or the settings"
        )
    if awaited:
        remedy = ASK_THE_REGISTRY + (f"; {remedy}" if wrong else "")
    fine = (
        f"{looked - len(wrong) - len(awaited)} of {counted(looked, 'record')} readable"
        if records
        else "no records yet"
    )
    detail = "; ".join([fine, *dict.fromkeys(awaited), *_grouped(wrong)])
    check = f"records of {source.topic}"
    # Of a user's topic several wrong records may be a part of it that is always lost.
    if not wrong or awaited or (source.sender is None and not source.signed and len(wrong) > 1):
        return Finding(check, not (wrong or awaited), detail, remedy if wrong or awaited else "")
    # What counts is how the topic is written now.
    latest = max(record.timestamp for record, _ in wrong)
    detail += f"; the last of them was written at {utc_time(latest)}"
    if _are_over([record for record, _ in wrong], records, remembered):
        told = read_on(configured)
        return Finding(check, True, f"{detail}, and later ones are readable", told, warns=True)
    return Finding(check, False, detail, f"{remedy}; this passes again once a later record is readable")


def _are_over(wrong: Iterable[Record], records: Iterable[Record], remembered: ChangelogContents) -> bool:
    """Whether workers have read all of these wrong records, and readable ones are the last of their
    partitions."""
    last = {(one.topic, one.partition): one.offset for one in sorted(records, key=lambda one: one.offset)}
    places = [((one.topic, one.partition), one.offset) for one in wrong]
    return all(offset < min(remembered.positions.get(place, 0), last[place]) for place, offset in places)


def _never_readable(source: Input, records: Sequence[Record]) -> list[tuple[Record, BadRecord]]:
    """For inputs of which the role silently accepts what it cannot use: the errors of each strict decoder
    that refuses every record."""
    found = (_all_refused(decode, records) for decode in source.strict)
    return [error for errors in found for error in errors]


def _all_refused(decode: Decode, records: Sequence[Record]) -> list[tuple[Record, BadRecord]]:
    """The errors, if every record has one; otherwise none."""
    errors = []
    for record in records:
        try:
            decode(record)
        except IgnoredRecord:
            return []
        except BadRecord as error:
            errors.append((record, error))
        else:
            return []
    return errors


def _grouped(wrong: Iterable[tuple[Record, BadRecord]]) -> list[str]:
    """The errors of these records, the most frequent first. Equal reasons are grouped, each with its number
    and an example."""
    groups: dict[tuple[str, str], list[tuple[Record, BadRecord]]] = {}
    for record, error in wrong:
        # An error's text begins with the field, which records have in common, and goes on with the record's
        # own value.
        groups.setdefault((error.reason, error.text.partition(" ")[0]), []).append((record, error))
    found = []
    for alike in sorted(groups.values(), key=len, reverse=True):
        record, error = alike[0]
        place = f"{record.topic}-{record.partition}-{record.offset}"
        found.append(
            f"{place} {error}" if len(alike) == 1 else f"{len(alike)} times, the first {place} {error}"
        )
    return found[:EXAMPLES] + (
        [f"and {counted(len(found) - EXAMPLES, 'other reason')}"] if len(found) > EXAMPLES else []
    )


def _times(topic: str, state: TopicState, records: Sequence[Record]) -> Iterator[Finding]:
    """Whether retention, which goes by the records' own times, deletes records too early or too late."""
    retention, now = float(state.options.get("retention.ms", -1)) / 1000, time.time()
    if state.options.get("message.timestamp.type") != "CreateTime" or "delete" not in state.options.get(
        "cleanup.policy", ""
    ):
        return
    ahead = sum(record.timestamp > now + DAY for record in records)
    old = sum(record.timestamp < now - retention for record in records) if retention >= 0 else 0
    told = (
        [f"{old} older than its retention of {retention / DAY:g} days may be deleted before they are read"]
        if old
        else []
    )
    told += [f"{ahead} with a time in the future keep their segments from being deleted"] if ahead else []
    if told:
        detail = (
            f"of {counted(len(records), 'record')} {' and '.join(told)}: retention uses the writer's "
            "timestamps"
        )
        yield Finding(f"retention of {topic} by time", True, detail, f"set {KEEP_OLD_RECORDS}", warns=True)


def _none_left(bus: Bus, topic: str, remembered: ChangelogContents) -> Iterator[Finding]:
    """Whether a topic without records had some, of partitions in which nothing was ever read: retention
    deletes a history that was written with its own times before the first worker starts."""
    begins = bus.offsets(topic, -math.inf)
    gone = sum(begin for number, begin in begins.items() if (topic, number) not in remembered.positions)
    if gone:
        detail = (
            f"all that was written to it, up to {counted(gone, 'record')}, is deleted, and nothing was read"
        )
        remedy = f"write old records again, with {KEEP_OLD_RECORDS}: retention uses the writer's timestamps"
        yield Finding(f"retention of {topic}", True, detail, remedy, warns=True)


def _keys(
    configured: Configured, channel: str, records: Sequence[Record], remembered: ChangelogContents
) -> Iterator[Finding]:
    """Whether keys that are read as text are binary numbers: low numbers are valid text too, others are
    not."""
    section = getattr(configured.settings, channel, None)
    named = getattr(section, "client", None) or getattr(section, "entity", None)
    if not isinstance(section, KeySection) or section.key != "text" or named:
        return
    binary = [record for record in records if binary_hint(record.key or b"")]
    if binary:
        hint = binary_hint(binary[0].key or b"")
        over = len(binary) == 1 and _are_over(binary, records, remembered)
        yield Finding(
            f"keys of {section.topic}",
            over,
            f"{len(binary)} of {counted(len(records), 'record')} have a key that is no text{hint}",
            read_on(configured) if over else f"say in [{channel}] how the key is written, or name a field",
            warns=over,
        )


def _labels(configured: Configured, batch: Sequence[Received]) -> Iterator[Finding]:
    """Whether any of these samples has the label that the settings name. A label that all lack is probably
    misnamed."""
    section = getattr(configured.settings, "samples", None)
    samples = [one for one in batch if isinstance(one.message, Sample)]
    if not isinstance(section, SamplesSection) or section.label is None or not samples:
        return
    labelled = sum(one.message.label is not None for one in samples)
    detail = f"{labelled} of {counted(len(samples), 'sample')} labelled"
    if stopped := _no_longer_labelled([one.message for one in samples if isinstance(one.message, Sample)]):
        detail = (
            f"{detail}; the newest samples of {first_of(stopped, EXAMPLES)} have no label, all before had"
        )
        remedy = "check who writes the labels: streamfl inspect says since when a client has none"
        yield Finding(f"labels of {section.topic}", True, detail, remedy, warns=True)
        return
    if labelled:
        yield Finding(f"labels of {section.topic}", True, detail)
        return
    known = _fields(section, [one.record for one in samples])
    close = difflib.get_close_matches(section.label, known, n=1)
    hint = f", did you mean {close[0]!r}?" if close else ""
    yield Finding(
        f"labels of {section.topic}",
        False,
        f"{detail}: none has the field {section.label!r} that samples.label names, and nothing would be "
        f"learnt{hint}",
        f"set samples.label to one of the fields that are there ({', '.join(known)}), or leave it out if no "
        "labels come",
    )


def _no_longer_labelled(samples: Iterable[Sample]) -> list[str]:
    """The clients whose newest samples have no label although all before had one."""
    known: dict[str, list[bool]] = {}
    for sample in samples:
        known.setdefault(sample.client, []).append(sample.label is not None)
    return sorted(
        client
        for client, labelled in known.items()
        if labelled == sorted(labelled, reverse=True) and NEWEST <= labelled.count(False) < len(labelled)
    )


def _label_range(configured: Configured, batch: Sequence[Received]) -> Iterator[Finding]:
    """Whether the labels, which come in units of samples.label_range, take up a plausible share of it. A
    single mistaken label may have widened the range that `streamfl init` wrote."""
    section = getattr(configured.settings, "samples", None)
    if not isinstance(section, SamplesSection):
        return
    messages = [one.message for one in batch]
    labels = [one.label for one in messages if isinstance(one, (Sample, Label)) and one.label is not None]
    if len(labels) < ENOUGH_LABELS or not 0.0 < (share := max(labels) - min(labels)) < LEAST_SHARE:
        return
    low, high = section.label_range
    least, most = (low + one * (high - low) for one in (min(labels), max(labels)))
    yield Finding(
        "samples.label_range",
        True,
        f"{counted(len(labels), 'label')} that were looked at are between {least:.10g} and {most:.10g}, "
        f"{share:.1g} of the range {list(section.label_range)}: in so wide a range good predictions and bad "
        "ones are hardly told apart",
        "if other labels are no larger, set samples.label_range to their real range, before there is state. "
        "Single labels outside it are learnt too",
        warns=True,
    )


def _fields(section: SamplesSection, records: Sequence[Record]) -> list[str]:
    decode = format_of(section).decoder(Any)
    contents = [decode(record.value or b"") for record in records[:SAMPLE_RECORDS]]
    return sorted({name for content in contents if isinstance(content, dict) for name in leaf_paths(content)})
