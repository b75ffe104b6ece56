"""Hooks of mkdocs: the site has the repository's own pages too, and links lead there as they do in the
repository."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(\]\()([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add what pages link to outside of docs: other pages, and the sources that they speak of."""
    waiting = ["README.md", *(f"docs/{file.src_uri}" for file in files if file.src_uri.endswith(".md"))]
    seen = set(waiting)
    while waiting:
        place = waiting.pop()
        if not place.startswith("docs/"):
            files.append(File.generated(config, site_place(place), abs_src_path=str(ROOT / place)))
        if place.endswith(".md"):
            text = (ROOT / place).read_text(encoding="utf-8")
            found = {linked for _, target in LINK.findall(text) if (linked := in_repository(place, target))}
            new = {linked for linked in found - seen if not linked.startswith("docs/")}
            waiting += sorted(new)
            seen |= new
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Let links between docs and the rest of the repository lead to where these files lie on the site."""
    place = str(Path(page.file.abs_src_path or "").relative_to(ROOT).as_posix())

    def led(match: re.Match[str]) -> str:
        linked = in_repository(place, match[2])
        if linked is None:
            return match[0]
        return match[1] + posixpath.relpath(site_place(linked), posixpath.dirname(page.file.src_uri) or ".")

    return LINK.sub(led, markdown)


def in_repository(place: str, target: str) -> str | None:
    """The path that a link leads to from a file of the repository, or None where it leads to no file."""
    if ":" in target:
        return None
    linked = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
    return linked if os.path.isfile(ROOT / linked) else None


def site_place(place: str) -> str:
    """Where a file of the repository lies among the site's sources."""
    return "index.md" if place == "README.md" else place.removeprefix("docs/")
