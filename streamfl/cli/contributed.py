"""Options that systems add to a command: each system's function takes some, and the command takes all of
them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args

from typer.models import OptionInfo

from streamfl.contract.role import ConfigurationError

__all__ = ["own_options", "with_options"]


def with_options(
    command: Callable[..., None], functions: Mapping[str, Callable[..., Any]]
) -> Callable[..., None]:
    """The command with the options of all ``functions``, by system, besides its own. It gets them as keyword
    arguments.

    A function's first parameter is no option. If systems describe an option differently, or some do not have
    it, its help names the systems. ConfigurationError if an option has values of two kinds, or a default
    other than None or False.
    """
    own = [one for one in _parameters(command) if one.kind is not inspect.Parameter.VAR_KEYWORD]
    contributed: dict[str, dict[str, inspect.Parameter]] = {}
    for system, function in functions.items():
        for parameter in _parameters(function)[1:]:
            contributed.setdefault(parameter.name, {})[system] = parameter
    taken = {parameter.name for parameter in own}
    merged = []
    for name, by_system in contributed.items():
        first = next(iter(by_system.values()))
        alike = len({(one.default, _kind(one)) for one in by_system.values()}) == 1
        if name in taken or not alike or _kind(first) is None or first.default not in (None, False):
            raise ConfigurationError(
                f"{', '.join(by_system)}: the option --{name.replace('_', '-')} of one has another meaning "
                "elsewhere, has a default that is neither None nor False, or is no typer.Option: uninstall "
                "the package of one of them"
            )
        merged.append(_merged(by_system, len(functions)))

    def call(**options: Any) -> None:
        command(**options)

    call.__name__, call.__doc__ = command.__name__, command.__doc__
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own, *merged)]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    return call


def own_options(function: Callable[..., Any], options: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The options that this function takes; ConfigurationError if others were given."""
    own = {parameter.name for parameter in _parameters(function)[1:]}
    given = [
        f"--{name.replace('_', '-')}"
        for name, value in options.items()
        if value is not None and value is not False
    ]
    others = [name for name in given if name[2:].replace("-", "_") not in own]
    if others:
        has = "has" if len(others) == 1 else "have"
        raise ConfigurationError(f"{', '.join(others)} {has} no meaning with role.kind = {kind!r}")
    return {name: value for name, value in options.items() if name in own}


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())


def _kind(parameter: inspect.Parameter) -> Any:
    """The type of an option's values; None if the parameter is not annotated as an option."""
    kind, *notes = get_args(parameter.annotation) or (None,)
    return kind if any(isinstance(note, OptionInfo) for note in notes) else None


def _merged(by_system: Mapping[str, inspect.Parameter], systems: int) -> inspect.Parameter:
    """One parameter for several systems, whose help names the systems if they differ."""
    first = next(iter(by_system.values()))
    named: dict[str, list[str]] = {}
    for system, parameter in by_system.items():
        named.setdefault(_note(parameter).help or "", []).append(system)
    told = copy.copy(_note(first))
    if len(named) > 1 or len(by_system) < systems:
        told.help = " ".join(f"{', '.join(owners)}: {text}" for text, owners in named.items())
    return first.replace(annotation=Annotated[_kind(first), told])


def _note(parameter: inspect.Parameter) -> OptionInfo:
    return next(note for note in get_args(parameter.annotation)[1:] if isinstance(note, OptionInfo))
