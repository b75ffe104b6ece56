"""The page of a system's settings, made from the classes that read its configuration files."""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from streamfl.reference.tables import NOTE, table
from streamfl.role_kind import RoleKind
from streamfl.settings import RoleSettings
from streamfl.system import System, load

__all__ = ["section_page", "sections", "settings_page"]

HEADING = ("key", "type", "default", "allowed", "meaning")
WORDS: dict[object, str] = {str: "text", int: "whole number", float: "number", bool: "true or false", dict: "table"}
ENDS = {"ge": "from {}", "gt": "above {}", "le": "up to {}", "lt": "below {}"}


def settings_page(system: System) -> str:
    """Every section and key of the system's roles: type, default, what is allowed, meaning."""
    kinds: dict[str, RoleKind[Any]] = load(system.roles)
    by_class: dict[type[RoleSettings], list[str]] = {}
    for name in system.kinds:
        by_class.setdefault(kinds[name].settings, []).append(name)
    parts = [f"# Settings of {system.name}", NOTE]
    for settings, names in by_class.items():
        roles = " and ".join(f"`{name}`" for name in names)
        parts.append(f"Of {roles}: one TOML file for each. A default of *required* means that there is none.")
        for name, section in sections(settings).items():
            parts.append(section_page(name, section))
            parts += [section_page(f"{name}.{key}", table, listed=True) for key, table in _tables(section)]
            within = sections(section).items()
            parts += [section_page(f"{name}.{key}", table) for key, table in within if key not in settings.model_fields]
    return "\n\n".join(parts) + "\n"


def sections(settings: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Every section of a configuration file, or of one of its sections, by name."""
    found: dict[str, type[BaseModel]] = {}
    for name, field in settings.model_fields.items():
        for member in get_args(field.annotation) or (field.annotation,):
            if isinstance(member, type) and issubclass(member, BaseModel):
                # In a table of sections the user chooses the names.
                found[f"{name}.NAME" if get_origin(field.annotation) is dict else name] = member
    return found


def _tables(section: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """The keys of a section that are lists of tables."""
    for key, field in section.model_fields.items():
        for listed in _lists(field.annotation):
            (item,) = get_args(listed)
            if isinstance(item, type) and issubclass(item, BaseModel):
                yield key, item


def _lists(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is list:
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType, Annotated):
        for member in get_args(annotation):
            yield from _lists(member)


def section_page(name: str, section: type[BaseModel], listed: bool = False) -> str:
    """One section: a table of its keys. listed: whether the section is a list of tables."""
    rows = [
        (
            f"`{name}.{field.alias or key}`",
            _type(field.annotation),
            _default(field),
            _allowed(field),
            " ".join((field.description or "").split()),
        )
        for key, field in section.model_fields.items()
    ]
    heading = f"[[{name}]]" if listed else f"[{name}]"
    return f"## {heading}\n\n{inspect.cleandoc(section.__doc__ or '')}\n\n{table(HEADING, rows)}"


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
        told = [member for member in members if member is not type(None) and not (member is int and float in members)]
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
    return f"{'-' * (value < 0)}2^{size.bit_length() - 1}" if size > 10**15 and size.bit_count() == 1 else f"{value:,}"
