"""The tables on the pages of what the roles of a system remember."""

from __future__ import annotations

from streamfl.contract.system import System, load
from streamfl.monitoring.pages import table
from streamfl.state.table import StateTable

__all__ = ["state_section"]

HEADING = ("key", "what it holds", "when it is written", "most in a partition")
ABOUT = (
    "What a worker remembers of a partition, by key of its changelog. A record with any other key is refused "
    "at the start. If the worker's clock is set back, remembered times after the new time are replaced by it."
)


def state_section(system: System) -> str:
    """The state of a system's roles, or no text if none of them declares it."""
    found: dict[str, StateTable] = {
        name: kind.state for name, kind in load(system.roles).items() if kind.state.rows
    }
    texts = [f"### State of {name}\n\n{_table(state)}" for name, state in found.items()]
    return "\n\n".join([ABOUT, *texts]) if texts else ""


def _table(state: StateTable) -> str:
    return table(HEADING, [(f"`{row.key}`", row.meaning, row.written, row.limit) for row in state.rows])
