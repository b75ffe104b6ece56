"""Mistakes in settings, explained with the names that the user wrote."""

from __future__ import annotations

import difflib
import types
from collections.abc import Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from streamfl.configuration.urls import without_userinfo

__all__ = ["explained", "unknown"]


def explained(error: ValidationError, cls: type[BaseModel], content: dict[str, Any]) -> list[str]:
    """A line for each wrong key, with its value and what is allowed. content: the settings as they were
    read."""
    lines: dict[str, list[str]] = {}
    for problem in error.errors():
        path, value = _locate(problem["loc"], content, missing=problem["type"] == "missing")
        message = problem["msg"].removeprefix("Value error, ")
        shown = "" if _may_be_secret(path) else f"= {without_userinfo(_as_written(value))}"
        if isinstance(value, dict) and problem["type"] == "value_error":
            for line in message.splitlines():
                key, _, text = line.partition(" ")
                lines.setdefault(".".join([*path, key]), []).append(text)
            continue
        if problem["type"] == "missing":
            text = "is missing" if isinstance(value, dict) else f"{shown}: more items are expected"
        elif problem["type"] == "extra_forbidden":
            section = _model_at(cls, path[:-1])
            known = section.model_fields if section else {}
            text = unknown(path[-1], {field.alias or name: field for name, field in known.items()})
        elif isinstance(value, dict):
            text = message
        else:
            text = f"{shown}: {message}"
        lines.setdefault(".".join(path), []).append(text)
    joined = {key: " / ".join(dict.fromkeys(texts)) for key, texts in lines.items()}
    return [
        f"{key}{text}" if text.startswith(":") else f"{key} {text}".strip() for key, text in joined.items()
    ]


def _as_written(value: object) -> str:
    try:
        return repr(value)
    except RecursionError:
        return "(sections within sections, too deep to be shown)"


def _may_be_secret(path: list[str]) -> bool:
    """Whether the value at this path may hold a password, in its proper place or not."""
    return path[:1] == ["bus"] and (len(path) == 1 or path[1] in ("url", "options"))


def _locate(location: tuple[int | str, ...], content: Any, missing: bool) -> tuple[list[str], Any]:
    # pydantic appends the names of a union's members to a location; the user needs only the names in the
    # file.
    path: list[str] = []
    for element in location:
        listed = isinstance(content, (list, tuple)) and isinstance(element, int) and element < len(content)
        if listed or (isinstance(content, dict) and element in content):
            content = content[element]
        else:
            if missing and isinstance(content, dict):
                path.append(str(element))
            break
        path.append(str(element))
    return path, content


def _model_at(cls: type[BaseModel], path: list[str]) -> type[BaseModel] | None:
    named = False
    for name in path:
        if named or name.isdecimal():
            # This is the user's name for a section, or its index in a list.
            named = False
            continue
        field = cls.model_fields.get(name)
        models = [] if field is None else _models_in(field.annotation)
        if not models:
            return None
        named = field is not None and get_origin(field.annotation) is dict
        cls = models[0]
    return cls


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return [annotation] if issubclass(annotation, BaseModel) else []
    if get_origin(annotation) in (Union, types.UnionType, Annotated, list, dict):
        return [model for member in get_args(annotation) for model in _models_in(member)]
    return []


def unknown(name: str, known: Mapping[str, Any]) -> str:
    """The text for an unknown name, with the most similar known one."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f", did you mean {close[0]!r}?" if close else ""
    return f"is not known{hint} (known: {', '.join(sorted(known))})"
