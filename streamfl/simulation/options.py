"""Options that several commands and systems share, each defined once, and how a Python program passes
them."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Annotated, Any, get_args

import typer
from typer.models import OptionInfo

from streamfl.contract.role import ConfigurationError

__all__ = ["ClientColumnOption", "DataOption", "LabelOption", "SeedOption", "options_given"]

DataOption = Annotated[
    str, typer.Option("--data", help="A .csv, .jsonl, .parquet or .npz file, or river:NAME.")
]
LabelOption = Annotated[
    str | None,
    typer.Option(help="The data's label column; left out: samples.label, or that of [labels], else y."),
]
ClientColumnOption = Annotated[
    str | None,
    typer.Option(
        help="The data's client column; left out: samples.client, else rows are dealt to the clients in turn."
    ),
]
SeedOption = Annotated[int | None, typer.Option(help="Left out: federation.seed.")]


def options_given(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A program's values for options of ``function``, checked for type and bounds like those of its command.

    ConfigurationError names the first wrong one. An option without its own annotation is passed on unchanged.
    """
    parameters = inspect.signature(function, eval_str=True).parameters
    return {name: _checked(name, value, parameters[name].annotation) for name, value in options.items()}


def _checked(name: str, value: Any, annotation: Any) -> Any:
    kinds, *notes = get_args(annotation) or (None,)
    note = next((one for one in notes if isinstance(one, OptionInfo)), None)
    allowed = get_args(kinds) or (kinds,)
    if note is None or (value is None and type(None) in allowed):
        return value
    kind = next(one for one in allowed if one is not type(None))
    converted = _as_kind(value, kind)
    low, high = (-math.inf if note.min is None else note.min), (math.inf if note.max is None else note.max)
    within = converted is not None and (
        kind not in (int, float) or math.isnan(converted) or low <= converted <= high
    )
    if not within:
        bounds = (f" of at least {low}" if note.min is not None else "") + (
            f" of at most {high}" if note.max is not None else ""
        )
        example = f", such as {str(value)!r}," if kind is str and isinstance(value, numbers.Number) else ""
        told = f"{name} = {_shown(value)}: {_expected(kind)}{bounds}{example} is expected. {note.help or ''}"
        raise ConfigurationError(told.rstrip())
    return converted


def _as_kind(value: Any, kind: Any) -> Any:
    """The value converted to this type; None if it does not fit."""
    if kind is bool:
        return bool(value) if type(value).__name__ in ("bool", "bool_") else None
    if kind in (int, float):
        wanted = numbers.Integral if kind is int else numbers.Real
        return kind(value) if type(value) is not bool and isinstance(value, wanted) else None
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next((one for one in kind if value in (one, one.value)), None)
    return value if not isinstance(kind, type) or isinstance(value, kind) else None


def _expected(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(str(one.value) for one in kind)}"
    names = {int: "a whole number", float: "a number", str: "a text", bool: "True or False"}
    return names.get(kind, getattr(kind, "__name__", str(kind)))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
