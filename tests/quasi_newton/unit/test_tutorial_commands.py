"""The commands of the tutorial of a scorecard, run as they stand there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_commands import PageCommands, credit_history, page_text, put_credit

from streamfl.quasi_newton.encryption.key_file import make_key_file

ROWS = 400


@pytest.fixture(name="page")
def _page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[PageCommands]:
    page = PageCommands(tmp_path, page_text("quasi-newton.md", "Tutorial"), monkeypatch, capsys)
    yield page
    page.close()


@pytest.mark.long
def test_every_command_of_the_page_runs(page: PageCommands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects two organisations' first try: keys, topics, history, check and processes, in the page's own
    words, lead to a model and to the scorecard that a regulator is shown. The key is short and customers are
    few, so that it takes seconds.
    """
    key = make_key_file(page.folder / "auditor" / "auditor.keys", 512)
    link = os.urandom(32)
    for member in ("bank", "shop"):
        for name, content in (("own.secret", os.urandom(32)), ("link.secret", link)):
            path = page.folder / member / name
            path.touch(mode=0o600)
            path.write_bytes(content)
    smaller = {
        "ENCRYPTION__KEY_FINGERPRINT": key.public.fingerprint,
        "ENCRYPTION__KEY_BITS": "512",
        "ENCRYPTION__STUDY": "true",
        "LEARNING__BATCH": "100",
        "LEARNING__MIN_BATCH": "100",
        "LEARNING__EPOCHS": "2",
        "SCORING__INTERVAL_SECONDS": "1",
    }
    for name, value in smaller.items():
        monkeypatch.setenv(f"STREAMFL_{name}", value)
    put_credit(page, credit_history(ROWS))
    page.do("simulate")
    page.do("topics")
    page.do("replay")
    monkeypatch.setenv("STREAMFL_ALIGNMENT__SETTLE_SECONDS", "1")
    monkeypatch.setenv("STREAMFL_ALIGNMENT__ENTITIES", "300")
    page.do("check")
    page.start()
    page.wait_for("credit.predictions", ROWS // 2)
    page.stop()
    page.do("scorecard")
    assert "income" in (page.folder / "bank" / "bank.json").read_text()
    assert page.commands == []
