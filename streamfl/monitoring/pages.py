"""Pages in Markdown: one for each system, and one for every worker. Alerts link to their headings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from streamfl.contract.system import System

__all__ = ["EVERY_WORKER", "METRICS", "REASONS", "RUNBOOK", "SETTINGS", "STATE", "anchor", "page", "table"]

# A system's page has the system's name.
EVERY_WORKER = "worker"
SETTINGS, STATE, METRICS, REASONS, RUNBOOK = "Settings", "State", "Metrics", "Reasons", "Runbook of alerts"


def page(system: System | None, note: str, sections: Mapping[str, str]) -> str:
    """The text of a system's page, or, for None, of every worker's. note: who writes it. sections: their text
    by heading."""
    title = "every worker"
    about = "Every worker has what this page lists, whatever its system. Each system has its own page."
    if system:
        title, about = system.name, f"This page is about the system `{system.name}`: {system.summary}. "
        about += f"What every worker has, whatever its system, is on [another page]({EVERY_WORKER}.md)."
    links = " · ".join(f"[{heading}](#{anchor(heading)})" for heading in sections)
    texts = [f"## {heading}\n\n{text}" for heading, text in sections.items()]
    return "\n\n".join([f"# Reference of {title}", about, note, links, *texts]) + "\n"


def anchor(heading: str) -> str:
    """What a link to a heading of words has behind its #, on GitHub and on the site of the documents."""
    return heading.lower().replace(" ", "-")


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """One row a line, with the heading above. A bar within a cell is escaped."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)
