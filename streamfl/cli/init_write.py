"""The end of streamfl init: it writes the file, and says what is in it and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamfl.cli.config_draft import ConfigDraft
from streamfl.cli.init_read import RecordSample
from streamfl.contract.role import ConfigurationError
from streamfl.contract.system import find_system
from streamfl.records.schema_inference import InferredField
from streamfl.roles.role_kind import RoleKind
from streamfl.terminal.console import OutputFormat, print_json, print_table, say
from streamfl.terminal.words import counted

__all__ = ["BEFORE", "tell_result", "write_draft"]

BEFORE = "Before it runs:"


def write_draft(config: Path, draft: ConfigDraft, kind: RoleKind[Any], seen: RecordSample | None) -> None:
    told = (
        f"Written by `streamfl init`{'' if seen is None else f' from {seen.told()}'}. Comments say why a key "
        "is as it is."
    )
    head = [told]
    if "samples" in draft.sections:
        head.append(
            "A record that lacks one of the fields named here is a dead letter, unless the field's table has "
            "`missing`."
        )
    if missing := draft.to_fill_in(kind.settings):
        head.append(f"To fill in: {', '.join(missing)}.")
    draft.head[:0] = head
    # A draft with keys to fill in has not been parsed yet.
    draft.content(kind.settings)
    text = draft.text(kind.settings)
    try:
        content = text.encode()
    except UnicodeEncodeError:
        raise ConfigurationError("what was given on the command line is not text in UTF-8") from None
    try:
        with config.open("xb") as file:
            file.write(content)
    except OSError as error:
        raise ConfigurationError(f"{config}: cannot be written: {error.strerror or error}") from None


def tell_result(
    config: Path,
    draft: ConfigDraft,
    kind: RoleKind[Any],
    seen: RecordSample | None,
    guesses: Sequence[InferredField],
    readable: int | None,
    format: OutputFormat,
) -> None:
    missing, total = draft.to_fill_in(kind.settings), 0 if seen is None else len(seen.records)
    if format is OutputFormat.JSON:
        print_json(
            {
                "config": str(config),
                "records": total,
                "readable": readable,
                "settings": draft.content(kind.settings),
                "left_out": {guess.path: guess.why for guess in guesses if guess.keys is None},
                "to_fill_in": missing,
                "before_it_runs": [note for note in draft.head if note.startswith(BEFORE)],
            }
        )
        return
    if guesses and "samples" in draft.sections:
        rows = [(guess.path, taken_as(guess), guess.why) for guess in guesses]
        print_table(f"Fields of {counted(total, 'record')}", ("field", "taken as", "why"), rows)
    say(
        f"wrote {config}"
        + ("" if readable is None else f": {readable} of {counted(total, 'record')} can be read with it")
    )
    for key in missing:
        say(f"to fill in: {key}")
    for note in draft.head[1:]:
        if note.startswith(BEFORE):
            say(note)
    if "samples.assemble" in draft.sections:
        say(
            f"{draft.sections['samples']['topic'][1]}: run streamfl rekey {config} beside the worker. Wrong? "
            "Say --no-assemble"
        )
    elif "samples.rekey" in draft.sections:
        say(
            f"the topic does not have the required keys: streamfl rekey {config} writes a rekeyed copy, "
            "beside the worker"
        )
    if "labels.rekey" in draft.sections:
        say(
            f"the labels do not have the required keys: streamfl rekey {config} --stream labels writes a "
            "rekeyed copy"
        )
    others = ", ".join(name for name in find_system(kind.name).kinds if name != kind.name)
    inputs = "-inputs" if seen is not None and seen.partitions is None else ""
    say(f"then: streamfl topics {config} --create{inputs}, streamfl check {config}, streamfl run {config}")
    if others:
        say(f"for {others}: the same command with --role, another file and --like {config}")
    elif "party" in draft.sections:
        say(f"for the other parties: the same command with --party, another file and --like {config}")


def taken_as(guess: InferredField) -> str:
    return "" if guess.keys is None else str(guess.keys.get("as", "number"))
