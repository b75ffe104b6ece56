"""A system's settings on its page, made from the classes that read its configuration files."""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Collection, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from streamfl.configuration.shared import shared_keys
from streamfl.contract.system import System, load
from streamfl.monitoring.pages import table
from streamfl.roles.role_kind import RoleKind
from streamfl.state.changeable import Changeable

__all__ = ["section_text", "sections", "settings_section"]

HEADING = ("key", "type", "default", "allowed", "meaning")
CHANGEABLE_TEXT = "*Changeable.*"
SHARED_TEXT = "*The same at every member.*"
WORDS: dict[object, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    dict: "table",
}
ENDS = {"ge": "from {}", "gt": "above {}", "le": "up to {}", "lt": "below {}"}


def settings_section(system: System) -> str:
    """Every section and key of the system's roles: type, default, what is allowed, meaning."""
    kinds: dict[str, RoleKind[Any]] = load(system.roles)
    parts = []
    for settings in dict.fromkeys(kinds[name].settings for name in system.kinds):
        roles = ", ".join(f"`{name}`" for name in system.kinds if kinds[name].settings is settings)
        parts.append(
            f"Each role has its own TOML file: {roles}. A default of *required* means that there is none. "
            f"{CHANGEABLE_TEXT} A role goes on with its state when the key has another value; without this "
            "mark a state that was made with another value is refused, unless the key only says how "
            "something is reached, logged or shown. "
            f"{SHARED_TEXT} All members of the federation need the value that one of them has, as in all of "
            "`[federation]`; `streamfl init --like` takes it from another member's file."
        )
        shared = shared_keys(settings)
        parts += [section_text(heading, section, shared) for heading, section in sections(settings).items()]
    return "\n\n".join(parts)


def sections(settings: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Every section of a configuration file by its heading in TOML, each with those within it behind it."""
    own = dict(_headings(settings))
    found: dict[str, type[BaseModel]] = {}
    for heading, section in own.items():
        # Several sections have one like [registry], which the file has itself.
        inner = {
            name: one
            for name, one in _headings(section, f"{heading.strip('[]')}.")
            if one not in own.values()
        }
        found |= {heading: section} | inner
    return found


def _headings(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    for key, field in section.model_fields.items():
        for form, inner in _models(field.annotation):
            yield form.format(f"{prefix}{key}"), inner


def _models(annotation: Any, form: str = "[{}]") -> Iterator[tuple[str, type[BaseModel]]]:
    """The sections that a key can hold, each with the form of its heading. In a table of sections the user
    chooses the names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield form, annotation
    form = {list: "[[{}]]", dict: "[{}.NAME]"}.get(get_origin(annotation), form)
    for member in get_args(annotation):
        yield from _models(member, form)


def section_text(heading: str, section: type[BaseModel], shared: Collection[tuple[str, str]] = ()) -> str:
    """One section: its keys in a table.

    shared: section and key of the settings that all members need alike.
    """
    name = heading.strip("[]")
    rows = []
    for key, field in section.model_fields.items():
        changeable = [CHANGEABLE_TEXT] if any(isinstance(one, Changeable) for one in field.metadata) else []
        alike = [SHARED_TEXT] if (name, field.alias or key) in shared else []
        meaning = " ".join([*(field.description or "").split(), *alike, *changeable])
        rows.append(
            (
                f"`{name}.{field.alias or key}`",
                _type(field.annotation),
                _default(field),
                _allowed(field),
                meaning,
            )
        )
    paragraphs = inspect.cleandoc(section.__doc__ or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return f"### Section {heading}\n\n{text}\n\n{table(HEADING, rows)}"


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "*required*"
    return "*none*" if value is None else f"`{json.dumps(value)}`"


def _type(annotation: Any) -> str:
    origin, members = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(members[0])
    if origin is Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in members)
    if origin in (Union, types.UnionType):
        # A "number" may be whole, so int is not listed besides float.
        told = [
            member
            for member in members
            if member is not type(None) and not (member is int and float in members)
        ]
        return " or ".join(map(_type, told))
    if origin is list and isinstance(members[0], type) and issubclass(members[0], BaseModel):
        return "list of tables"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    if origin is list:
        return f"list of {_type(members[0])}"
    if origin is tuple:
        return f"list of {len(members)}, each {_type(members[0])}"
    return WORDS.get(origin or annotation, "anything")


def _allowed(field: FieldInfo) -> str:
    return "; ".join(_bounds([*field.metadata, *_within(field.annotation)]))


def _within(annotation: Any) -> list[Any]:
    """The bounds of an alternative, such as the list in "list or nothing"."""
    found: list[Any] = []
    for member in get_args(annotation):
        if get_origin(member) is Annotated:
            for each in get_args(member)[1:]:
                found += each.metadata if isinstance(each, FieldInfo) else [each]
    # The bounds of a list's items are not the list's own.
    return found if get_origin(annotation) in (Union, types.UnionType) else []


def _bounds(metadata: list[Any]) -> Iterator[str]:
    for bound in metadata:
        for end, text in ENDS.items():
            if (value := getattr(bound, end, None)) is not None:
                yield text.format(_number(value))
        if isinstance(bound, annotated_types.MinLen):
            yield "not empty" if bound.min_length == 1 else f"at least {bound.min_length} long"
        if isinstance(bound, annotated_types.MaxLen):
            yield f"at most {bound.max_length} long"
        if (pattern := getattr(bound, "pattern", None)) is not None:
            yield f"matches `{pattern}`"


def _number(value: float) -> str:
    if not isinstance(value, int):
        return f"{value:,g}"
    size = abs(value)
    # Large powers of two, such as the ends of a number type, are shown as powers.
    return (
        f"{'-' * (value < 0)}2^{size.bit_length() - 1}"
        if size > 10**15 and size.bit_count() == 1
        else f"{value:,}"
    )
