"""The settings that ``streamfl init`` writes if several records make one sample."""

from __future__ import annotations

from collections.abc import Sequence

from streamfl.cli.config_draft import ConfigDraft
from streamfl.cli.init_read import RecordSample
from streamfl.cli.init_sections import put_topic
from streamfl.contract.role import ConfigurationError
from streamfl.records.narrow import Narrow, NarrowRecord, narrow_shape
from streamfl.records.schema_inference import InferredField
from streamfl.terminal.words import counted

__all__ = ["check_label", "find_narrow", "narrow_guesses", "put_narrow"]

MOST_SHOWN = 12


def find_narrow(seen: RecordSample, owners: Sequence[str], guesses: Sequence[InferredField]) -> Narrow | None:
    """How these records become samples, if each has only one value of several."""
    pairs = zip(seen.readable(), owners, strict=True)
    readings = [NarrowRecord(owner, record.timestamp, content) for (record, content), owner in pairs]
    return narrow_shape(readings, guesses, seen.format.keys.get("columns"))


def check_label(narrow: Narrow, label: str | None, none: bool) -> None:
    """ConfigurationError if the label is not among the names of the records' values."""
    if label in narrow.names or (label is None and none):
        return
    choices = ", ".join(narrow.names[:MOST_SHOWN])
    said = (
        "which of them is to be predicted is not known"
        if label is None
        else f"--label {label} is none of them"
    )
    raise ConfigurationError(
        f"{narrow.told()}. Several records make one sample, and {said}: say --label with one of {choices}; "
        "or --no-label. If each record is a sample by itself, say --no-assemble"
    )


def put_narrow(
    draft: ConfigDraft, seen: RecordSample, narrow: Narrow, topic: str, sample_id: str | None
) -> None:
    """Write the settings of the new topic, of the user's own topic, and of the assembly of samples."""
    why = f"{narrow.told()}. `streamfl rekey` puts samples together and writes this topic"
    draft.put("samples", "topic", f"{topic}-samples", why)
    put_topic(draft, "samples.rekey", topic, seen)
    if sample_id is None:
        sample_id = narrow.together.get("id", "span")
        why = "" if "id" in narrow.together else "the second since 1970 at which the sample begins"
        draft.put("samples", "sample_id", sample_id, why)
    for key, value in narrow.together.items():
        draft.put("samples.assemble", key, value, _why(key, narrow))
    draft.put("samples.assemble", "name", narrow.name)
    draft.put("samples.assemble", "value", narrow.value)


def narrow_guesses(
    narrow: Narrow, label: str | None, guesses: Sequence[InferredField]
) -> list[InferredField]:
    """The fields of an assembled sample: every name except the label's, and the time."""
    keys = {**({"as": "number"} if narrow.text else {}), "missing": "last"}
    found = [
        InferredField(name, keys, f"{narrow.value} where {narrow.name} is {name}")
        for name in narrow.names
        if name != label
    ]
    time = narrow.together.get("time")
    return [*found, *(guess for guess in guesses if guess.path == time)]


def _why(key: str, narrow: Narrow) -> str:
    if key == "several":
        return "some values come more often than others"
    if key not in ("seconds", "id"):
        return ""
    if narrow.complete is None:
        return (
            "a guess, for nothing says when a record was written: which records of a client are one sample?"
        )
    return f"{narrow.complete:.0%} of the samples then have all of {counted(len(narrow.names), 'value')}"
