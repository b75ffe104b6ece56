"""Tables of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["NOTE", "table"]

NOTE = "Written from the code by `make reference`: a change belongs there."


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """One row a line, with the heading above. A bar within a cell is escaped."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)
