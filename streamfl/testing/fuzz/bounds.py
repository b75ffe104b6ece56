"""Numbers at, just below and just above the bounds that the code declares. Only they reveal a wrong
comparison."""

from __future__ import annotations

import math
import pkgutil
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, get_args, get_type_hints

import msgspec
import numpy as np

from streamfl.contract.system import installed_systems

__all__ = ["declared_bounds", "near", "numbers_near_bounds", "patterns_near_bounds"]

# Rooms that systems share. A system's own are its folder without its tools.
SHARED = ("streamfl.encoding", "streamfl.records", "streamfl.learning", "streamfl.privacy")
TOOLS = "tools"
# Prefixes of constants' names that mark bounds.
BOUND = ("LARGEST", "SMALLEST", "MOST", "LEAST", "LATEST", "LONGEST", "FEWEST", "MAXIMUM")


def near(bound: float) -> list[float]:
    """The bound, its neighbours in double and single precision and as whole numbers, and all of these with
    the other sign."""
    found: set[float] = {bound}
    if isinstance(bound, int):
        found |= {bound - 1, bound + 1}
    with suppress(OverflowError), np.errstate(over="ignore", under="ignore"):
        found |= {math.nextafter(bound, way) for way in (-math.inf, math.inf)}
        single = np.float32(bound)
        found |= {
            float(single),
            *(float(np.nextafter(single, np.float32(way))) for way in (-math.inf, math.inf)),
        }
    return sorted(
        {sign * number for number in found for sign in (1, -1)}, key=lambda number: (number, str(number))
    )


@cache
def numbers_near_bounds() -> list[float]:
    return sorted(
        {number for bound in declared_bounds() for number in near(bound)},
        key=lambda number: (number, str(number)),
    )


@cache
def patterns_near_bounds() -> list[bytes]:
    """The same numbers as bytes in arrays: floating point of both sizes, and integers of two, four and eight
    bytes."""
    found: set[bytes] = set()
    for number in numbers_near_bounds():
        for form in ("<f", "<d") if isinstance(number, float) else ("<h", "<i", "<q"):
            with suppress(struct.error, OverflowError):
                found.add(struct.pack(form, number))
    return sorted(found)


@cache
def declared_bounds() -> list[float]:
    """Bounds declared by constants' names, and the limits in the types of messages and state."""
    found: set[float] = set()
    for module in _modules():
        for name, content in vars(module).items():
            if name.startswith(BOUND) and isinstance(content, (int, float)) and not isinstance(content, bool):
                found.add(int(content) if isinstance(content, int) else float(content))
            found.update(_of_type(content))
            if (
                isinstance(content, type)
                and issubclass(content, msgspec.Struct)
                and content.__module__ == module.__name__
            ):
                for hint in get_type_hints(content, include_extras=True).values():
                    found.update(_of_type(hint))
    return sorted(found)


def _of_type(hint: Any) -> Iterator[float]:
    for meta in getattr(hint, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta):
            yield from (bound for bound in (meta.ge, meta.gt, meta.le, meta.lt) if bound is not None)
    for part in get_args(hint):
        yield from _of_type(part)


def _modules() -> Iterator[ModuleType]:
    own = [system.roles.partition(":")[0].rpartition(".")[0] for system in installed_systems()]
    for place in (*SHARED, *(name for name in own if name)):
        yield from _within(import_module(place))


def _within(module: ModuleType) -> Iterator[ModuleType]:
    yield module
    for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
        if found.name != TOOLS:
            yield from _within(import_module(f"{module.__name__}.{found.name}"))
