"""The commands of the tutorial of two organisations that learn a kernel model, run as they stand there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from page_commands import PageCommands, page_text, try_credit

ROWS = 300


@pytest.fixture(name="page")
def _page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[PageCommands]:
    page = PageCommands(tmp_path, page_text("fdskl.md", "Tutorial"), monkeypatch, capsys)
    yield page
    page.close()


@pytest.mark.long
def test_every_command_of_the_page_runs(page: PageCommands) -> None:
    """Protects two organisations' first try: topics, history, check and processes, in the page's own words,
    lead to predictions."""
    try_credit(page, ROWS)
    assert page.commands == []
