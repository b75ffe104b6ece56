"""A settings file in the making: sections with their keys, and a reason beside each key."""

from __future__ import annotations

import json
import math
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import BaseModel

from streamfl.configuration.asked_for import is_asked_for
from streamfl.configuration.settings import RoleSettings
from streamfl.contract.role import ConfigurationError
from streamfl.terminal.printable import printable

__all__ = ["ConfigDraft", "section_class"]

WIDTH = 110
_BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass
class ConfigDraft:
    """The file as it grows. Sections and keys keep the order in which they were added.

    head: comments at the top.
    sections: by name, keys with value and reason.
    inputs: tables of ``[[samples.inputs]]``, each with its reason.
    notes: by section, comments at its end.
    """

    head: list[str] = field(default_factory=list)
    sections: dict[str, dict[str, tuple[Any, str]]] = field(default_factory=dict)
    inputs: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)

    def put(self, section: str, key: str, value: Any, why: str = "") -> None:
        """Set a key, and replace an earlier value with its reason."""
        self.sections.setdefault(section, {})[key] = (value, why)

    def drop(self, section: str) -> None:
        """Leave a section out."""
        self.sections.pop(section, None)
        self.notes.pop(section, None)
        if section == "samples":
            self.inputs = []

    def text(self, settings: type[RoleSettings]) -> str:
        """The text of the file. Keys that are asked for and missing are in it as comments, with their
        meaning."""
        lines = [*_commented(self.head), ""]
        for name, section in self._asked_sections(settings):
            if name not in self.sections and self._lacking(section, {}):
                self.sections[name] = {}
        for name, keys in self.sections.items():
            lines.append(f"[{name}]")
            for key, (value, why) in keys.items():
                lines += _line(key, value, why)
            if "." not in name:
                for key, meaning in self._lacking(section_class(settings, name), keys):
                    lines += [*_commented([f"To fill in: {meaning}"]), f"# {key} ="]
            lines += _commented(self.notes.get(name, []))
            lines.append("")
            if name == "samples":
                for table, why in self.inputs:
                    written = [line for key, value in table.items() for line in _line(key, value, "")]
                    lines += [*_commented([why]), "[[samples.inputs]]", *written, ""]
        return "\n".join(lines).rstrip() + "\n"

    def content(self, settings: type[RoleSettings]) -> dict[str, Any]:
        """The parsed text of the file; ConfigurationError if it is no TOML."""
        try:
            return tomllib.loads(self.text(settings))
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(
                f"the file would not be valid TOML: {error}. A key of --set occurs twice, or is invalid; "
                "leave --set out, and edit the written file"
            ) from None

    def to_fill_in(self, settings: type[RoleSettings]) -> list[str]:
        """The keys that are asked for and missing."""
        found = []
        for name, section in self._asked_sections(settings):
            found += [f"{name}.{key}" for key, _ in self._lacking(section, self.sections.get(name, {}))]
        for name, keys in self.sections.items():
            if "." not in name:
                found += [f"{name}.{key}" for key, _ in self._lacking(section_class(settings, name), keys)]
        return list(dict.fromkeys(found))

    def _asked_sections(self, settings: type[RoleSettings]) -> Iterator[tuple[str, type[BaseModel]]]:
        """Sections that the file has to have, or with a key that it is asked for."""
        for name, field_ in settings.model_fields.items():
            section = _section_of(settings, name)
            asked = field_.is_required() or name in settings.needed_by(self._kind)
            if section is not None and (asked or self._marked(section)):
                yield name, section

    def _marked(self, section: type[BaseModel]) -> bool:
        """Whether the file is asked for a key of the section that has a default."""
        return any(
            not known.is_required() and is_asked_for(known, self._kind)
            for known in section.model_fields.values()
        )

    @property
    def _kind(self) -> str:
        return str(self.sections["role"]["kind"][0])

    def _lacking(self, section: type[BaseModel], keys: Mapping[str, Any]) -> list[tuple[str, str]]:
        return [
            (key, " ".join((known.description or "").split()))
            for key, known in section.model_fields.items()
            if is_asked_for(known, self._kind) and key not in keys
        ]


def section_class(settings: type[RoleSettings], name: str) -> type[BaseModel]:
    """The class of a section of these settings; ConfigurationError if there is no such section."""
    section = _section_of(settings, name)
    if section is None:
        raise ConfigurationError(
            f"[{name}]: there is no such section; there are {', '.join(settings.model_fields)}"
        )
    return section


def _section_of(settings: type[RoleSettings], name: str) -> type[BaseModel] | None:
    found = settings.model_fields.get(name)
    members = () if found is None else (found.annotation, *get_args(found.annotation))
    for member in members:
        if isinstance(member, type) and issubclass(member, BaseModel):
            return member
    return None


def _line(key: str, value: Any, why: str) -> list[str]:
    if isinstance(value, list) and len(json.dumps(value)) > WIDTH // 2:
        written = [f"{_key(key)} = [", *(f"  {_written(one)}," for one in value), "]"]
    else:
        written = [f"{_key(key)} = {_written(value)}"]
    if why and len(written) == 1 and len(written[0]) + len(why) + 4 <= WIDTH:
        return [f"{written[0]}  # {printable(why)}"]
    return [*_commented([why] if why else []), *written]


def _commented(texts: Sequence[str]) -> list[str]:
    return [
        f"# {line}"
        for text in texts
        for line in textwrap.wrap(printable(text), WIDTH - 2, break_long_words=False) or [""]
    ]


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _written(key)


def _written(value: Any) -> str:
    """A value in TOML's syntax."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A JSON string is a TOML string, except for one character that TOML requires to be escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(str(key))} = {_written(one)}" for key, one in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_written, value)) + "]"
    return str(value)
