"""Whether a setting may change under a state is said on its field."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated

from pydantic import Field

from streamfl.configuration.settings import RoleSettings, Section
from streamfl.state.changeable import CHANGEABLE, Changeable, changeable_keys


class Shape(Section):
    """Settings of a model."""

    size: int = 3
    rate: Annotated[float, CHANGEABLE] = Field(default=0.1, gt=0)
    step: Annotated[str, Changeable(at="client")] = "plain"


class ToySettings(RoleSettings):
    """Settings of a toy."""

    shape: Shape | None = None


TOY = ToySettings.model_validate({"federation": {"name": "toys"}, "role": {"kind": "client"}, "shape": {}})


def test_a_key_without_a_mark_must_stay() -> None:
    assert changeable_keys(TOY, "client") == {"federation.members", "shape.rate", "shape.step"}
    assert changeable_keys(TOY, "server") == {"federation.members", "shape.rate"}


def test_a_copy_computes_anew_what_follows_from_its_settings() -> None:
    """Protects a fingerprint that would be that of the settings before."""

    class Square(Section):
        """A shape."""

        side: int = 2

        @cached_property
        def area(self) -> int:
            return self.side**2

    small = Square()
    assert (small.area, small.model_copy(update={"side": 3}).area) == (4, 9)
