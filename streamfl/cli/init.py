"""``streamfl init``: writes a settings file for existing records."""

from __future__ import annotations

import copy
import errno
import os
import re
import time
import tomllib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from streamfl.cli.config_draft import ConfigDraft, section_class
from streamfl.cli.init_like import other_member, put_like
from streamfl.cli.init_read import RecordSample, lines_of, look, records_of, topic_section
from streamfl.cli.init_samples import InitOptions, LabelsTopic, put_labels, put_samples, with_ids
from streamfl.cli.init_write import BEFORE, tell_result, write_draft
from streamfl.configuration.settings import GivenSettings, load_settings
from streamfl.contract.role import BadRecord, ConfigurationError, IgnoredRecord, NotYetReadable
from streamfl.contract.system import installed_systems
from streamfl.records.schema_inference import InferredField
from streamfl.records.topic import RecordSettings
from streamfl.rekeying.kind import rekey_kind, streams_of
from streamfl.roles.role_kind import RoleKind
from streamfl.runtime.bus import connect
from streamfl.runtime.kinds import find_kind
from streamfl.terminal.console import FormatOption, OutputFormat
from streamfl.terminal.progress import progress

__all__ = ["init"]

# The default bus, which no other process can reach, and the URL that is written in its place.
NOWHERE = "memory://"
ELSEWHERE = "kafka://localhost:9092"
# By section, the options that write it.
SECTIONS = {
    "samples": "--from-topic TOPIC",
    "labels": "--labels-topic TOPIC --label FIELD",
    "party": "--party NAME",
}


FromFileOption = Annotated[
    Path | None,
    typer.Option(help="Look at the first lines of this file instead: JSON, an object a line, or CSV."),
]
ClientOption = Annotated[
    str | None,
    typer.Option(
        "--client", "--entity", help="The field that names the client or entity; left out: the record's key."
    ),
]
LabelsTopicOption = Annotated[
    str | None, typer.Option(help="The topic that labels come on, where they are not with the samples.")
]
SampleIdOption = Annotated[
    str | None, typer.Option(help="The field with the sample's id; left out: its place in the topic.")
]
AssembleOption = Annotated[
    bool,
    typer.Option(
        "--assemble/--no-assemble",
        help="Put one sample together from records that have one value each, if they do.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Another key, such as --set federation.clients=40. It can be repeated."),
]
LikeOption = Annotated[
    Path | None,
    typer.Option(
        metavar="CONFIG",
        help="Another member's file: what all members need alike is taken from it, such as [federation], "
        "and bus.url.",
    ),
]
SecondsOption = Annotated[
    float, typer.Option(min=0.1, help="For so long the bus and the registry are waited for.")
]


def init(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="The file to write. One that exists is not overwritten.")
    ],
    role: Annotated[
        str | None, typer.Option(help="The role's kind; left out: a client with samples of its own.")
    ] = None,
    from_topic: Annotated[str | None, typer.Option(help="Look at some records of this topic.")] = None,
    from_file: FromFileOption = None,
    url: Annotated[
        str | None, typer.Option(help="bus.url, such as kafka://host:9092 or sqlite://plant.db.")
    ] = None,
    client: ClientOption = None,
    label: Annotated[str | None, typer.Option(help="The field to be predicted.")] = None,
    no_label: Annotated[
        bool, typer.Option("--no-label", help="No field is: predict, and learn nothing.")
    ] = False,
    labels_topic: LabelsTopicOption = None,
    like: LikeOption = None,
    sample_id: SampleIdOption = None,
    assemble: AssembleOption = True,
    federation: Annotated[
        str | None, typer.Option(help="federation.name; left out: `federation`.", show_default=False)
    ] = None,
    parties: Annotated[str | None, typer.Option(help="federation.parties, with commas between them.")] = None,
    party: Annotated[str | None, typer.Option(help="party.name, which of the parties this is.")] = None,
    record_format: Annotated[
        str | None, typer.Option(help="How records are written; left out: it is found out.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Of CSV: the columns' names, with commas between them.")
    ] = None,
    registry: Annotated[
        str | None, typer.Option(help="registry.url, where records name a schema by number.")
    ] = None,
    schema_file: Annotated[
        str | None, typer.Option(help="Of bare Avro and Protobuf: the file with the schema.")
    ] = None,
    message: Annotated[str | None, typer.Option(help="Of Protobuf: the message's name.")] = None,
    settings: SetOption = None,
    seconds: SecondsOption = 30.0,
    format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Look at some records and write a settings file for them, with the reason of every guess beside it as a
    comment.

    It finds out the records' format and, field by field, numbers, times, truth values and categories. It
    never guesses which field names the client and which is to be predicted. It writes nothing to the bus.
    Logins of a cluster and of a registry come from the environment, as STREAMFL_BUS__OPTIONS__… and
    STREAMFL_REGISTRY__…, and are not put into the file.
    """
    sources = _Sources(from_topic, from_file, labels_topic, like)
    said = {"name": federation, "parties": None if parties is None else parties.split(",")}
    kind = find_kind(role or installed_systems()[0].kinds[0])
    other = other_member(like, said, kind)
    federation = federation or str(other.get("federation", {}).get("name", "federation"))
    url = url or other.get("bus", {}).get("url")
    _check_given(config, sources, {"--client": client, "--label": label, "--sample-id": sample_id})
    names = None if columns is None else columns.split(",")
    given = {"format": record_format, "columns": names, "schema_file": schema_file, "message": message}
    own = [_assignment(one, kind) for one in settings or ()]
    given |= {
        key: value for section, key, value in own if section == "samples" and key in ("delimiter", "decimal")
    }
    reached = _reached(kind, federation, url, registry)
    if url is None and reached.bus.url == NOWHERE and from_file is None:
        raise ConfigurationError(
            "--url is missing: where the topic is, such as kafka://host:9092 or sqlite://plant.db"
        )
    look_at = _SourceReader(reached, given, time.monotonic() + seconds, seconds)
    draft = _member_draft(kind, federation, reached.bus.url, parties, party, registry)
    asked = InitOptions(draft, kind, client, label, no_label, sample_id, assemble, own)
    samples, guesses = _put_records(asked, sources, look_at)
    put_like(draft, like, other)
    alone = copy.deepcopy(draft)
    for section, key, value in own:
        draft.put(section, key, value, "as you say")
    readable = _settle(draft, alone, kind, config, samples)
    write_draft(config, draft, kind, samples)
    tell_result(config, draft, kind, samples, guesses, readable, format)


@dataclass(frozen=True)
class _Sources:
    """What to look at. topic, file: at most one, with samples. labels: the labels' topic. like: another
    member's file."""

    topic: str | None
    file: Path | None
    labels: str | None
    like: Path | None


def _check_given(config: Path, sources: _Sources, fields: Mapping[str, str | None]) -> None:
    """ConfigurationError if options miss or exclude one another. fields: names of fields, by option."""
    if os.path.exists(config):
        raise ConfigurationError(
            f"{config}: exists, and is not overwritten: give another name, or move it away"
        )
    if sources.topic is not None and sources.file is not None:
        raise ConfigurationError("--from-topic and --from-file exclude one another: leave one out")
    if sources == _Sources(None, None, None, None):
        raise ConfigurationError(
            "--from-topic is missing: the topic with the records to look at; or a file, --from-file; or "
            "another member's settings, --like"
        )
    for option, field in fields.items():
        if field == "":
            raise ConfigurationError(
                f"{option} is empty: the name of a field is expected; else leave {option} out"
            )


def _member_draft(
    kind: RoleKind[Any],
    federation: str,
    url: str,
    parties: str | None,
    party: str | None,
    registry: str | None,
) -> ConfigDraft:
    """A draft that says whose worker it is, and where bus and registry are."""
    draft = ConfigDraft()
    draft.put("federation", "name", federation, "the first part of the names of its topics")
    _put_parties(draft, kind, parties, party)
    draft.put("bus", "url", *((ELSEWHERE, "say where it is") if url == NOWHERE else (url, "")))
    draft.put("role", "kind", kind.name)
    if party is not None:
        draft.put("party", "name", party)
    if registry is not None:
        draft.put("registry", "url", registry)
    return draft


def _put_records(
    asked: InitOptions, sources: _Sources, look_at: _SourceReader
) -> tuple[RecordSample | None, list[InferredField]]:
    """Look at samples and labels, and write their sections. Returns the samples, if any, and what their
    fields were taken for."""
    samples, guesses = None, list[InferredField]()
    labels = (
        None
        if sources.labels is None
        else LabelsTopic(sources.labels, look_at.topic(sources.labels), asked.sample_id)
    )
    if sources.topic is not None or sources.file is not None:
        topic, samples = look_at.samples(sources.topic, sources.file)
        if labels is not None:
            sample_id, labels = with_ids(asked, labels, samples)
            asked = replace(asked, sample_id=sample_id)
        guesses = put_samples(asked, samples, topic, labels)
    if labels is not None:
        put_labels(asked, labels, samples)
    return samples, guesses


class _SourceReader:
    """Reads records, each source once."""

    def __init__(
        self, reached: RecordSettings, given: dict[str, Any], deadline: float, seconds: float
    ) -> None:
        self._reached, self._given, self._deadline, self._seconds = reached, given, deadline, seconds

    def samples(self, topic: str | None, file: Path | None) -> tuple[str, RecordSample]:
        """The topic's name and records; or those of a file, with the name of the topic that it becomes."""
        if topic is not None:
            return topic, self.topic(topic)
        assert file is not None
        name = (
            "".join(one if one.isascii() and (one.isalnum() or one in "._-") else "-" for one in file.stem)
            or "samples"
        )
        lines, whole = lines_of(file)
        return name, look(lines, self._section(name), None, self._deadline, file, whole)

    def topic(self, name: str) -> RecordSample:
        """Some records of a topic."""
        section, bus = self._section(name), self._reached.bus
        with progress(f"reading {name} of {bus.url}"):
            with closing(
                connect(bus.url, {"connect_timeout_seconds": self._seconds, **bus.options})
            ) as opened:
                records, partitions, whole = records_of(opened, name, self._deadline)
            return look(records, section, partitions, self._deadline, None, whole)

    def _section(self, topic: str) -> Any:
        return topic_section(topic, registry=self._reached.registry, **self._given)


def _reached(kind: RoleKind[Any], federation: str, url: str | None, registry: str | None) -> RecordSettings:
    """Bus and registry, from the command line and the environment."""
    overrides: dict[str, Any] = {"federation": {"name": federation}, "role": {"kind": kind.name}}
    if url is not None:
        overrides["bus"] = {"url": url}
    if registry is not None:
        overrides["registry"] = {"url": registry}
    return load_settings(None, RecordSettings, overrides)


def _put_parties(draft: ConfigDraft, kind: RoleKind[Any], parties: str | None, party: str | None) -> None:
    vertical = "parties" in section_class(kind.settings, "federation").model_fields
    if not vertical and (parties is not None or party is not None):
        raise ConfigurationError(
            f"--parties and --party have no meaning for a {kind.name}: its members have the same columns"
        )
    if parties is not None:
        draft.put("federation", "parties", parties.split(","), "in the same order at every member")


def _assignment(text: str, kind: RoleKind[Any]) -> tuple[str, str, Any]:
    """Section, key and value of ``section.key=value``; a value that is not TOML is text."""
    place, equals, written = text.partition("=")
    section, _, key = place.strip().rpartition(".")
    if not equals or not section or not key:
        raise ConfigurationError(
            f"--set {text}: section.key=value is expected, such as federation.clients=40"
        )
    if "." not in section and key not in (known := section_class(kind.settings, section).model_fields):
        raise ConfigurationError(f"--set {text}: {section}.{key} is not known; known are {', '.join(known)}")
    try:
        return section, key, tomllib.loads(f"value = {written}")["value"]
    except (ValueError, RecursionError):
        return section, key, written.strip()


def _settle(
    draft: ConfigDraft, alone: ConfigDraft, kind: RoleKind[Any], config: Path, seen: RecordSample | None
) -> int | None:
    """Drop sections that the role does not read, and read the records with the settings. Returns how many are
    readable, or None.

    alone: the draft without the user's --set. ConfigurationError if the user's --set makes settings that
    cannot run.
    """
    missing = [name for name in kind.settings.needed_by(kind.name) if name not in draft.sections]
    settings, found = _validated(draft, kind, config)
    unfilled = draft.to_fill_in(kind.settings)
    asked = {one.partition(".")[0] for one in unfilled}
    lacks = [re.compile(rf"\b{re.escape(name)} is missing\b") for name in (*missing, *asked, *unfilled)]
    wrong = [line for line in found if not any(one.search(line) for one in lacks)]
    # A mistake that is there without --set is left for the user to correct in the file; others come from
    # --set. A file may be made later, some of them only from the settings.
    said = [line for line in wrong if os.strerror(errno.ENOENT) not in line]
    if said and (own := [line for line in said if line not in _validated(alone, kind, config)[1]]):
        raise ConfigurationError("\n".join(map(_with_option, own)))
    lacking = [f"{name} is missing: a {kind.name} needs this section" for name in missing]
    draft.head += [f"{BEFORE} {_with_option(line)}" for line in lacking]
    if asked - {*missing}:
        # Without these keys the others were not looked at.
        return None
    draft.head += [f"{BEFORE} {_with_option(line)}" for line in wrong]
    if settings is None or seen is None or "samples" not in draft.sections:
        return None
    reader = rekey_kind("samples") if "samples.assemble" in draft.sections else kind
    source = reader.channels(settings).inputs.get("source" if reader is not kind else "samples")
    if source is None:
        return None
    count = 0
    for record in seen.records:
        try:
            source.decode(record)
        except (BadRecord, NotYetReadable):
            continue
        except IgnoredRecord:
            pass
        count += 1
    return count


def _with_option(mistake: str) -> str:
    """The mistake, with the options that write the section if one is missing."""
    missing = re.search(r"\b(\w+) is missing: ", mistake)
    option = SECTIONS.get(missing[1]) if missing else None
    return mistake if option is None else f"{mistake}; say {option}"


def _validated(draft: ConfigDraft, kind: RoleKind[Any], config: Path) -> tuple[Any, list[str]]:
    """The settings as `run` would read them, and their mistakes; drops sections that the role does not
    read."""
    unread = {section for section, kinds in kind.settings.read_by.items() if kind.name not in kinds}
    for name in [one for one in draft.sections if one.split(".")[0] in unread]:
        draft.drop(name)
    # Parsed from the file's text, because a key may be in it twice.
    content = GivenSettings({name: keys for name, keys in draft.content(kind.settings).items() if keys})
    try:
        settings = load_settings(content, kind.settings)
        kind.build(settings)
        for name in streams_of(settings):
            rekey_kind(name).build(settings)
    except ConfigurationError as error:
        return None, str(error).splitlines()
    return settings, []
