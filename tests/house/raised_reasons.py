"""Reads from the code's syntax trees which reasons it gives to refusals, ignored records and notices."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from house.sources import parsed

__all__ = ["raised_reasons"]


class _Call(NamedTuple):
    """A call, and the innermost function that it is in."""

    path: Path
    tree: ast.Module
    function: ast.FunctionDef | None
    call: ast.Call


class _Text(NamedTuple):
    """A reason, or a part of one. parameter: the function's parameter that comes after ``before``; None: the
    text is known."""

    before: str
    parameter: str | None = None
    after: str = ""

    def __add__(self, other: object) -> _Text:
        assert isinstance(other, _Text)
        if self.parameter is None:
            return _Text(self.before + other.before, other.parameter, other.after)
        assert other.parameter is None, "a reason is made from one parameter at most"
        return self._replace(after=self.after + other.before)


def raised_reasons(error: str, paths: Iterable[Path]) -> dict[Path, set[str]]:
    """The reasons that ``error`` gets as its first argument, by module. AssertionError if one of them cannot
    be read.

    If a function hands a parameter on as the reason, its callers' arguments are the reasons. A function whose
    name begins with an underscore has its callers in its own folder.
    """
    calls = defaultdict[str | None, list[_Call]](list)
    for path in paths:
        for one in _calls(path):
            calls[_called(one.call.func)].append(one)
    found = defaultdict[Path, set[str]](set)
    # Functions to look for: name, place of the reason among the arguments, the texts around it, and their
    # folder; None: any.
    functions: list[tuple[str, int, str, str, Path | None]] = [(error, 0, "", "", None)]
    for name, place, before, after, folder in functions:
        for one in calls[name]:
            if folder not in (None, one.path.parent):
                continue
            for text in _texts(one.call.args[place], one):
                text = _Text(before) + text + _Text(after)
                if text.parameter is None:
                    found[one.path].add(text.before)
                    continue
                assert one.function is not None
                parameters, private = _parameters(one.function), one.function.name.startswith("_")
                # A method is called without its first argument.
                method = parameters[0] == "self"
                caller = f".{one.function.name}" if method else one.function.name
                number = parameters.index(text.parameter) - method
                through = (caller, number, text.before, text.after, one.path.parent if private else None)
                functions += [] if through in functions else [through]
    return found


@functools.cache
def _calls(path: Path) -> tuple[_Call, ...]:
    tree = parsed(path)

    def within(node: ast.AST, function: ast.FunctionDef | None) -> Iterator[_Call]:
        for child in ast.iter_child_nodes(node):
            inner = child if isinstance(child, ast.FunctionDef) else function
            if isinstance(child, ast.Call):
                yield _Call(path, tree, inner, child)
            yield from within(child, inner)

    return tuple(within(tree, None))


def _called(function: ast.expr) -> str | None:
    """A function's name, with a point before that of a method."""
    return (
        function.id
        if isinstance(function, ast.Name)
        else f".{function.attr}"
        if isinstance(function, ast.Attribute)
        else None
    )


def _parameters(function: ast.FunctionDef) -> list[str]:
    return [one.arg for one in function.args.args]


def _texts(expression: ast.expr, where: _Call) -> list[_Text]:
    """All values that an expression can have. None for the reason of another error, or for the arguments of
    one, handed on."""
    match expression:
        case ast.Constant(str(value)):
            return [_Text(value)]
        case ast.IfExp():
            return [*_texts(expression.body, where), *_texts(expression.orelse, where)]
        case ast.FormattedValue():
            return _texts(expression.value, where)
        case ast.JoinedStr():
            found = [_Text("")]
            for part in expression.values:
                found = [one + other for one in found for other in _texts(part, where)]
            return found
        case ast.Attribute(attr="reason") | ast.Starred():
            return []
        case ast.Name(name):
            if where.function is not None and name in _parameters(where.function):
                return [_Text("", name)]
            for scope in (where.function, where.tree):
                if given := [value for value in _assigned(name, scope) if value is not expression]:
                    return [text for value in given for text in _texts(value, where)]
    raise AssertionError(
        f"{where.path}:{where.call.lineno}: {ast.unparse(expression)}: write the reason itself here"
    )


def _assigned(name: str, scope: ast.AST | None) -> Iterator[ast.expr]:
    for node in ast.walk(scope) if scope else ():
        if isinstance(node, ast.Assign) and any(
            isinstance(one, ast.Name) and one.id == name for one in node.targets
        ):
            yield node.value
