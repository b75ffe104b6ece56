"""Numbers in settings are finite, wherever they stand: in a list or in a table too."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from streamfl.contract.system import installed_systems
from streamfl.runtime.kinds import find_kind

# Infinity means something here: no noise.
INFINITE = {"privacy.epsilon"}


def _accepted(settings: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted keys of all sections that accept infinity or NaN."""
    for name, field in settings.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        sections = [one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)]
        for section in sections:
            yield from _accepted(section, f"{prefix}{name}.")
        if not sections and "float" in str(field.annotation):
            numbers = (math.inf, math.nan)
            if any(_takes(settings, name, shape) for one in numbers for shape in (one, [one], {"a": one})):
                yield prefix + name


def _takes(section: type[BaseModel], name: str, value: Any) -> bool:
    try:
        section.model_validate({name: value})
    except ValidationError as error:
        return not any(one["loc"][:1] in ((name,), ()) for one in error.errors())
    return True


@pytest.mark.parametrize("kind", [kind for system in installed_systems() for kind in system.kinds])
def test_no_setting_takes_a_number_that_is_not_finite(kind: str) -> None:
    """Protects whoever mistypes a setting: a NaN in a list of centres ended a party with a traceback, and no
    exit code said that the settings are wrong."""
    assert set(_accepted(find_kind(kind).settings)) <= INFINITE
