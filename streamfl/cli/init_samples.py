"""The sections that ``streamfl init`` writes for samples, and for labels on a topic of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streamfl.cli import init_sections as sections
from streamfl.cli.config_draft import ConfigDraft, section_class
from streamfl.cli.init_narrow import check_label, find_narrow, narrow_guesses, put_narrow
from streamfl.cli.init_read import RecordSample
from streamfl.cli.init_survey import survey
from streamfl.contract.role import BadRecord, ConfigurationError
from streamfl.records.fields import shown
from streamfl.records.schema_inference import InferredField, field_values
from streamfl.records.shared_names import SHARE, same_ids, same_names
from streamfl.roles.role_kind import RoleKind
from streamfl.terminal.words import counted

__all__ = ["InitOptions", "LabelsTopic", "put_labels", "put_samples", "with_ids"]


@dataclass(frozen=True)
class LabelsTopic:
    """The topic with the labels, and its field with the sample's id, if one was found."""

    topic: str
    seen: RecordSample
    sample_id: str | None = None
    why: str = ""


@dataclass(frozen=True)
class InitOptions:
    """The user's options, and the draft for them. own: section, key and value of each --set."""

    draft: ConfigDraft
    kind: RoleKind[Any]
    client: str | None
    label: str | None
    no_label: bool
    sample_id: str | None
    assemble: bool
    own: Sequence[tuple[str, str, Any]]

    def said(self, section: str) -> dict[str, Any]:
        """The keys of a section that the user set."""
        return {key: value for name, key, value in self.own if name == section}

    def fields_of(self, section: str) -> Any:
        """The keys that a section of the role's settings has."""
        return section_class(self.kind.settings, section).model_fields


def put_samples(
    asked: InitOptions, seen: RecordSample, topic: str, labels: LabelsTopic | None
) -> list[InferredField]:
    """Write ``[samples]``, and the keys of ``[federation]`` that follow. Returns what each field was taken
    for."""
    draft, client, label = asked.draft, asked.client, asked.label
    sections.check_fields(seen, (client, asked.sample_id))
    known, federation = asked.fields_of("samples"), asked.fields_of("federation")
    name = "client" if "client" in known else "entity"
    draft.put("samples", "topic", topic)
    keyed = asked.kind.settings.names_are_keys
    names = sections.put_names(draft, "samples", name, seen, client, asked.said("samples"), keyed)
    owners = sections.owners_of(seen, client, asked.said("samples"))
    if asked.sample_id is not None and "sample_id" not in known:
        raise ConfigurationError(
            f"--sample-id has no meaning for a {asked.kind.name}: an entity is one sample"
        )
    used = [one for one in (client, asked.sample_id) if one is not None]
    # If labels have a topic of their own, a field with the label's name here may reveal the label, so it is
    # no input.
    of_samples = label if labels is None else None
    all_fields = sections.guesses_of(seen, used, "client" in known, owners)
    # If the label is a field of its own, each record is a whole sample.
    whole = label in {guess.path for guess in all_fields}
    narrow = (
        find_narrow(seen, owners, all_fields) if asked.assemble and name == "client" and not whole else None
    )
    if narrow is None:
        sections.check_fields(seen, (of_samples,))
        sections.put_topic(draft, "samples", topic, seen)
        sections.put_partitions(draft, name, topic, seen, client)
        guesses = [guess for guess in all_fields if guess.path != label]
    else:
        if labels is None:
            check_label(narrow, label, asked.no_label)
        put_narrow(draft, seen, narrow, topic, asked.sample_id)
        guesses = narrow_guesses(narrow, of_samples, all_fields)
    if asked.sample_id is not None:
        draft.put("samples", "sample_id", asked.sample_id, "" if labels is None else labels.why)
    field, named = (
        (of_samples, None)
        if narrow is None or of_samples is None
        else (narrow.value, (narrow.name, of_samples))
    )
    found = survey(seen, client, field, named)
    if "label" in known and labels is None:
        if label is None and not asked.no_label:
            raise sections.ask_for_label(seen, used)
        if label is None:
            sections.without_label(draft)
        else:
            loss = asked.said("learning").get("loss")
            sections.put_labels(draft, "samples", asked.kind.settings, seen, found, label, loss)
    width = sections.put_inputs(draft, guesses)
    if "clients" in federation:
        sections.put_clients(draft, seen, found, names)
    if "features" in federation:
        features = draft.sections["samples"].get("features", (width, ""))[0]
        draft.put("federation", "features", features, "what a sample is; the same at every member")
    return guesses


def with_ids(
    asked: InitOptions, labels: LabelsTopic, samples: RecordSample
) -> tuple[str | None, LabelsTopic]:
    """The field with the id in the samples, and the labels' topic with its own id field, as far as equal
    values show them."""
    if "sample_id" not in asked.fields_of("labels"):
        return asked.sample_id, labels
    besides = {asked.client, asked.label}
    ours, theirs = (
        {
            path: values
            for path, values in _values(seen).items()
            if path not in besides or path == asked.sample_id
        }
        for seen in (samples, labels.seen)
    )
    if asked.sample_id is not None:
        if asked.sample_id in theirs:
            return asked.sample_id, LabelsTopic(labels.topic, labels.seen, asked.sample_id)
        ours = {path: values for path, values in ours.items() if path == asked.sample_id}
    found = same_ids(ours, theirs)
    if found is None:
        return asked.sample_id, labels
    field, other, common = found
    records = counted(len(labels.seen.format.read), "label")
    why = (
        f"{common} of {records} that were looked at have the id of a sample that was: {field} here, {other} "
        f"in {labels.topic}"
    )
    return field, LabelsTopic(labels.topic, labels.seen, other, why)


def put_labels(asked: InitOptions, labels: LabelsTopic, samples: RecordSample | None) -> None:
    """Write ``[labels]``. samples: records of the samples' topic."""
    draft, seen, label = asked.draft, labels.seen, asked.label
    sections.check_fields(seen, (asked.client, label, labels.sample_id))
    known = section_class(asked.kind.settings, "labels")
    if label is None:
        raise sections.ask_for_label(
            seen, [one for one in (asked.client, labels.sample_id) if one is not None]
        )
    sections.put_topic(draft, "labels", labels.topic, seen)
    name = "client" if "client" in known.model_fields else "entity"
    named = asked.client if asked.client is not None and sections.has_names(seen, asked.client) else None
    if named is None and samples is not None:
        named = _whose(asked, samples, seen, name)
    keyed = asked.kind.settings.names_are_keys
    sections.put_names(draft, "labels", name, seen, named, asked.said("labels"), keyed)
    if labels.sample_id is not None and "sample_id" in known.model_fields:
        other = labels.sample_id != asked.sample_id
        draft.put("labels", "sample_id", labels.sample_id, "what samples.sample_id is there" if other else "")
    found, loss = survey(seen, None, label), asked.said("learning").get("loss")
    sections.put_labels(draft, "labels", asked.kind.settings, seen, found, label, loss)
    if samples is not None and samples.partitions is not None:
        _put_place(asked, labels, samples, name, named)


def _whose(asked: InitOptions, samples: RecordSample, labels: RecordSample, name: str) -> str | None:
    """The field of the labels that names a sample's client; None if the key names it, or nothing does."""
    known = set(sections.owners_of(samples, asked.client, asked.said("samples"))) - {""}
    try:
        keys = labels.keys(asked.said("labels"))
    except BadRecord:
        keys = []
    if sum(key in known for key in keys) >= max(1, SHARE * len(keys)):
        return None
    fields = {path: values for path, values in _values(labels).items() if path != asked.label}
    if (found := same_names(known, fields)) is None:
        asked.draft.notes.setdefault("labels", []).append(
            f"Neither the key of these records nor a field of them names a {name} of the samples that were "
            f"looked at. A label meets its sample by the {name} and the sample's id, so it has to name both: "
            "see what `streamfl check` says."
        )
    return found


def _put_place(
    asked: InitOptions, labels: LabelsTopic, samples: RecordSample, name: str, named: str | None
) -> None:
    """If labels are in other partitions than their client's samples, write settings for a topic that
    `streamfl rekey` writes."""
    where = sections.partitions_of(samples, sections.owners_of(samples, asked.client, asked.said("samples")))
    found = sections.owners_of(labels.seen, named, asked.said("labels"))
    apart = [
        owner
        for (record, _), owner in zip(labels.seen.readable(), found, strict=True)
        if owner in where and record.partition not in where[owner]
    ]
    # Rekeyed samples will lie elsewhere. Then labels have to be keyed by the same name.
    rekeyed = "samples.rekey" in asked.draft.sections
    places = sections.partitions_of(labels.seen, found)
    torn = [owner for owner in places if rekeyed and owner and len(places[owner]) > 1]
    if torn:
        why = f"labels of {shown(torn[0])} lie in several partitions"
    elif apart:
        why = f"a label of {shown(apart[0])} lies in another partition than its samples"
    elif rekeyed or labels.seen.partitions == samples.partitions:
        return
    else:
        why = (
            f"{labels.topic} has {counted(labels.seen.partitions or 0, 'partition')}, the samples' topic "
            f"{samples.partitions}"
        )
    told = (
        f"{why}, and would not meet them. `streamfl rekey --stream labels` writes this topic, keyed as it "
        "has to be"
    )
    asked.draft.put("labels", "topic", f"{labels.topic}-by-{name}", told)
    asked.draft.put("labels.rekey", "topic", labels.topic, "your own")


def _values(seen: RecordSample) -> dict[str, list[Any]]:
    return field_values(seen.format.read, seen.format.keys.get("columns"))
