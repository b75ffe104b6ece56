"""What the text below each key of a settings class says, for pages and for files that streamfl writes.

It is read from the source when it is asked for. pydantic's ``use_attribute_docstrings`` reads it whenever a
class is made, which took a fifth of the processor time that a worker needs to start.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise

from pydantic import BaseModel

__all__ = ["key_descriptions"]


def key_descriptions(section: type[BaseModel]) -> dict[str, str]:
    """The description of each key, on one line; "" if it has none, or its source is not here."""
    written: dict[str, str] = {}
    for one in reversed(section.__mro__):
        if issubclass(one, BaseModel):
            written |= _written_in(one)
    return {
        key: " ".join((field.description or written.get(key, "")).split())
        for key, field in section.model_fields.items()
    }


def _written_in(section: type[BaseModel]) -> dict[str, str]:
    """The texts that follow keys in the source of this class."""
    try:
        [made] = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    except (OSError, TypeError, SyntaxError):
        return {}
    assert isinstance(made, ast.ClassDef)
    return {
        key.target.id: text.value.value
        for key, text in pairwise(made.body)
        if isinstance(key, ast.AnnAssign)
        and isinstance(key.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
