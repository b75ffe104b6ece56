"""The documentation site: it builds without a warning, and every link works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]


class Links(HTMLParser):
    """The targets of a page's links and pictures, and its anchors."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.leads: list[str] = []
        self.places: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.places.add(value)
            elif name in ("href", "src") and value:
                self.leads.append(value)


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(name="site", scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    ended = build(folder)
    assert ended.returncode == 0, ended.stderr
    assert "WARNING" not in ended.stderr
    return folder


@pytest.mark.long
def test_every_page_is_built_and_every_link_of_it_leads_somewhere(site: Path) -> None:
    """Protects readers of the site: an unlisted page, and a link that only works on GitHub, lead nowhere
    here."""
    pages = {page: Links(page) for page in site.rglob("*.html")}
    written = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    for path in written:
        name = "index.html" if path.name == "README.md" else f"{path.stem}.html"
        assert site / path.parent / name in pages, path
    dead = defaultdict(set)
    for page, links in pages.items():
        for lead in links.leads:
            parts = urlsplit(lead)
            if parts.scheme or parts.netloc or page.name == "404.html":
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if target.is_dir():
                target /= "index.html"
            if not target.exists() or (
                parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].places
            ):
                dead[page.relative_to(site).as_posix()].add(lead)
    assert not dead


def test_the_readme_is_the_first_page_and_source_files_lie_where_pages_say(site: Path) -> None:
    """Protects the entry page, and readers without the repository: files that pages name can be opened."""
    assert "Many sites learn one model together" in (site / "index.html").read_text(encoding="utf-8")
    for place in (
        "CONTRIBUTING.html",
        "DECISIONS.html",
        "examples/own_system/index.html",
        "examples/notebook/federation.ipynb",
    ):
        assert (site / place).is_file(), place


def test_tables_and_lists_are_what_they_are_on_github(site: Path) -> None:
    """Protects readers of the site: there a list needs an empty line before it, and a line that begins with
    "16." ends a table."""
    for path in (ROOT / "docs").rglob("*.md"):
        page = site / path.relative_to(ROOT / "docs").with_suffix(".html")
        if path.name == "README.md":
            page = page.with_name("index.html")
        built = page.read_text(encoding="utf-8")
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert built.count("<table>") == len(re.findall(r"^\|(?: *:?-+:? *\|)+$", text, re.MULTILINE)), path
        for paragraph in re.findall(r"<p>(.*?)</p>", built, re.DOTALL):
            assert not re.search(r"^(?:- |\d+\. |\|)", paragraph, re.MULTILINE), f"{path}: {paragraph}"


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    """Protects readers behind a firewall, and everybody from tracking by another server."""
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for tag in ("<script src=", '<link rel="stylesheet" href=', "<img src="):
            for after in text.split(tag)[1:]:
                assert not after.lstrip("\"'").startswith(("http:", "https:", "//")), page
