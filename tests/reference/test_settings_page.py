"""How types and bounds of settings are described in words."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from streamfl.configuration.settings import Section
from streamfl.reference.settings import section_text


class Example(Section):
    """What a section is good for."""

    name: str = Field(pattern=r"^a|b$", max_length=9)
    """Who."""
    sizes: Annotated[list[Annotated[int, Field(ge=1)]], Field(max_length=8)] = Field(default=[])
    """How large."""
    rate: float | None = Field(default=None, gt=0, le=1e6)
    """How fast
    it goes."""
    seed: int = Field(default=0, ge=-(2**63), lt=2**63)
    """Which."""
    kind: Literal["x", "y"] = "x"
    """What."""
    inputs: list[str] | int | None = None
    """Of what."""
    span: tuple[float, float] = (0.0, 1.0)
    """From where."""
    rest: dict[str, Any] = Field(default_factory=dict)
    """Whatever else."""


@pytest.mark.parametrize(
    "row",
    [
        r"| `e.name` | text | *required* | at most 9 long; matches `^a\|b$` | Who. |",
        "| `e.sizes` | list of whole number | `[]` | at most 8 long | How large. |",
        "| `e.rate` | number | *none* | above 0; up to 1e+06 | How fast it goes. |",
        "| `e.seed` | whole number | `0` | from -2^63; below 2^63 | Which. |",
        '| `e.kind` | `"x"` or `"y"` | `"x"` |  | What. |',
        "| `e.inputs` | list of text or whole number | *none* |  | Of what. |",
        "| `e.span` | list of 2, each number | `[0.0, 1.0]` |  | From where. |",
        "| `e.rest` | table | `{}` |  | Whatever else. |",
    ],
)
def test_a_key_is_a_row(row: str) -> None:
    """Protects every reference page: each kind of type, default and bound is described."""
    assert row in section_text("[e]", Example).splitlines()
