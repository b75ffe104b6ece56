"""Paths to values in a user's record: one syntax for every format."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

__all__ = ["ABSENT", "FieldPath", "Path", "leaf_paths", "named_in", "path_of"]

ABSENT: Any = object()
"""What :meth:`Path.find` returns if a record has no value."""

# Most steps of a path. Nobody nests deeper by hand, and each step costs time for every sample.
MOST_STEPS = 32
LARGEST_INDEX = 1_000_000
LONGEST_PATH = 1_000

_STEP = re.compile(r"(?P<dot>\.)?(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<name>[^.\[\]`]+))|\[(?P<index>[0-9]+)\]")


class Path:
    """A field, or a field within others: ``meta.site``, ``payload.readings[0].temp``, ``meta.`a.b` ``.

    Dots lead into objects, numbers in brackets into lists, and a name in backticks is taken as it is. Kafka
    Connect's transforms write nested fields this way (KIP-821), and ksqlDB its names.

    >>> Path("payload.readings[0].temp").find({"payload": {"readings": [{"temp": 21.5}]}})
    21.5
    >>> Path("`meta.site`").find({"meta.site": "oslo"})
    'oslo'
    """

    __slots__ = ("_first", "_rest", "steps", "text")

    def __init__(self, text: str, steps: tuple[str | int, ...] | None = None) -> None:
        self.text = text
        self.steps = _steps(text) if steps is None else steps
        self._first = str(self.steps[0])
        self._rest = self.steps[1:]

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Path) and self.steps == other.steps

    def __hash__(self) -> int:
        return hash(self.steps)

    @property
    def name(self) -> str | None:
        """The name of the record's field; None if the path leads into a field."""
        return None if self._rest else self._first

    def find(self, content: dict[str, Any]) -> Any:
        """The value in a record; ABSENT if there is none."""
        value = content.get(self._first, ABSENT)
        for step in self._rest:
            if isinstance(step, str):
                value = value.get(step, ABSENT) if isinstance(value, dict) else ABSENT
            else:
                value = value[step] if isinstance(value, list) and step < len(value) else ABSENT
        return value

    def lacking(self, content: dict[str, Any]) -> str:
        """Why there is no value: the full path, and how far it leads."""
        value: Any = content
        come = ""
        for step in self.steps:
            inner = Path("", (step,)).find(value) if isinstance(value, dict) else ABSENT
            if isinstance(step, int) and isinstance(value, list):
                inner = value[step] if step < len(value) else ABSENT
            if inner is ABSENT:
                break
            value, come = inner, _joined(come, step)
        text = f"{self.text} is missing"
        if come:
            text += f": {come} is {_kind(value)}"
        elif self._rest and isinstance(content, dict) and self.text in content:
            text += f": the record has one field of this whole name; write it in backticks, `{self.text}`"
        return text

    def put(self, content: dict[str, Any], value: Any) -> None:
        """Write a value where :meth:`find` finds it. Lists on the way are filled up with null."""
        inner: Any = content
        for step, following in zip(self.steps, (*self._rest, None), strict=True):
            made: Any = value if following is None else {} if isinstance(following, str) else []
            if isinstance(step, int):
                inner.extend([None] * (step + 1 - len(inner)))
                if following is None or inner[step] is None:
                    inner[step] = made
            elif following is None or step not in inner:
                inner[step] = made
            inner = inner[step]


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> Path:
    return Path(text)


def path_of(text: str, columns: Collection[str] | None = None) -> Path:
    """The path that a setting names; ValueError if the text is no path.

    columns: the record's fields, if the settings list them. A name among them is that field, whatever
    characters it has."""
    return Path(text, (text,)) if columns is not None and text in columns else _parsed(text)


def named_in(content: Any, text: str) -> Any:
    """The value under this name in a record, or else at this path; ABSENT if there is none, or the text is no
    path."""
    if not isinstance(content, Mapping):
        return ABSENT
    if text in content:
        return content[text]
    try:
        return path_of(text).find(dict(content))
    except ValueError:
        return ABSENT


def _is_a_path(value: str) -> str:
    _parsed(value)
    return value


FieldPath = Annotated[str, AfterValidator(_is_a_path)]
"""A setting that names a field."""


def leaf_paths(content: Any, most: int = 200, items: int = 0) -> list[str]:
    """The paths to all values of a record that are no objects, as a setting would name them. Returns the
    first ``most`` of them.

    items: how many items of a list have their own paths. 0: a list is one value; of a list of objects the
    first object has paths."""
    found: list[str] = []
    for path in _leaves(content, "", 0, items):
        if len(found) == most:
            break
        found.append(path)
    return found


def _leaves(content: Any, come: str, depth: int, items: int) -> Iterator[str]:
    if depth < MOST_STEPS and isinstance(content, dict) and content:
        for name, value in content.items():
            yield from _leaves(value, _joined(come, str(name)), depth + 1, items)
    elif (
        depth < MOST_STEPS
        and isinstance(content, list)
        and content
        and (items or isinstance(content[0], dict))
    ):
        for place, value in enumerate(content[: items or 1]):
            yield from _leaves(value, _joined(come, place), depth + 1, items)
    elif come:
        yield come


def _joined(come: str, step: str | int) -> str:
    if isinstance(step, int):
        return f"{come}[{step}]"
    plain = re.fullmatch(r"[^.\[\]`]+", step) is not None
    name = step if plain else "`" + step.replace("`", "``") + "`"
    return f"{come}.{name}" if come else name


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "an object without it"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "null" if value is None else "no object"


def _steps(text: str) -> tuple[str | int, ...]:
    steps: list[str | int] = []
    place = 0
    if len(text) > LONGEST_PATH:
        raise ValueError(f"{text[:60]!r}…: at most {LONGEST_PATH} characters are expected")
    while place < len(text):
        match = _STEP.match(text, place)
        # A dot is between two steps, and nowhere else.
        if (
            match is None
            or (match["index"] is None and (match["dot"] is None) != (place == 0))
            or (match["index"] and not place)
        ):
            raise ValueError(
                f"{text!r}: a field, or a path such as meta.site or readings[0].temp, is expected; a name "
                "with dots, brackets or backticks of its own goes in backticks, such as `meta.site`"
            )
        if match["index"] is not None:
            steps.append(int(match["index"]))
        else:
            steps.append(match["quoted"].replace("``", "`") if match["quoted"] is not None else match["name"])
        place = match.end()
    if not 0 < len(steps) <= MOST_STEPS or any(
        isinstance(step, int) and step > LARGEST_INDEX for step in steps
    ):
        raise ValueError(
            f"{text[:60]!r}: a field, or a path of at most {MOST_STEPS} steps with numbers up to "
            f"{LARGEST_INDEX}, is expected"
        )
    return tuple(steps)
