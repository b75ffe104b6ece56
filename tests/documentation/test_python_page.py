"""The pages for users of notebooks or with their own records: the examples work as shown."""

from __future__ import annotations

import doctest
import io
import json
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import Command
from page_commands import page_text

DOCS = Path(__file__).parents[2] / "docs"


def test_the_examples_for_python_run() -> None:
    """Protects users who copy from the page into a notebook."""
    outcome = doctest.testfile(str(DOCS / "python.md"), module_relative=False)
    assert outcome.attempted > 15
    assert outcome.failed == 0


def test_settings_from_a_file_as_the_page_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """Protects the first settings file: every command, from a file of records to a passing check, works as
    written."""
    text = page_text("will-my-topic-work.md", "Settings from your own records")
    [line] = re.findall(r"```json\n(.*?)\n```", text)
    rows = [json.loads(line) | {"flow": n / 7, "lever": 5 + n % 3} for n in range(20)]
    (tmp_path / "readings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^    streamfl (.*)$", text.partition("### From a topic")[0], re.MULTILINE)
    assert len(commands) == 6
    for words in commands:
        arguments, _, redirected = words.partition(" < ")
        content = (tmp_path / redirected).read_bytes() if redirected else b""
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
        code, _, error = command(*shlex.split(arguments))
        assert code == 0, f"{words}: {error}"
