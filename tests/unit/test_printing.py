"""Texts from topics are printed, logged and served as visible characters only."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from streamfl.runtime.health import Health
from streamfl.runtime.health_server import _pages
from streamfl.runtime.log import configure, logger
from streamfl.terminal.console import (
    OutputFormat,
    as_table,
    as_text,
    print_json,
    print_line,
    print_list,
    print_table,
    print_text,
    say,
)
from streamfl.terminal.exit_codes import ExitCode
from streamfl.terminal.printable import printable, printable_json, printable_lines

# A terminal's title, colours by a C1 control character, right-to-left text, and half of a surrogate pair.
EVIL = "press\x1b]0;owned\x07\x9b31m\u202e\x7f\r\x00\ud800\U000e0041\u2028"
TEXT = st.text(st.characters())


def is_visible(text: str) -> bool:
    return all(sign.isprintable() or sign == "\n" for sign in text)


@given(TEXT)
def test_what_is_made_printable_is_visible_and_stays_so(text: str) -> None:
    """Protects terminals from every character, and texts from being escaped twice."""
    assert printable(text).isprintable()
    assert is_visible(printable_lines(text))
    assert printable(printable(text)) == printable(text)
    assert printable_lines(text).count("\n") == text.count("\n")


@given(st.dictionaries(TEXT, TEXT | st.lists(TEXT)))
def test_json_means_what_it_meant(content: dict[str, Any]) -> None:
    """Protects programs that read JSON: escapes are JSON's own, so names and values are unchanged."""
    for text in (json.dumps(content, ensure_ascii=False), json.dumps(content, indent=1)):
        assert is_visible(printable_json(text))
        assert json.loads(printable_json(text)) == content


@pytest.mark.parametrize(
    "show",
    [
        lambda: print_table(EVIL, [EVIL], [[EVIL]], [EVIL]),
        lambda: print_table(EVIL, [EVIL], []),
        lambda: print_list(EVIL, [(EVIL, EVIL)]),
        lambda: print_line(EVIL, "b"),
        lambda: print_text(EVIL),
        lambda: print_json({EVIL: [EVIL]}),
        lambda: say(f"error: {EVIL}"),
        lambda: Console(file=sys.stdout).print(as_text(EVIL), as_table([EVIL], [[EVIL]], EVIL)),
    ],
    ids=["table", "no rows", "list", "line", "text", OutputFormat.JSON, "stderr", "drawn"],
)
def test_every_way_to_print_is_safe(show: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Protects the operator's terminal from a stranger's text, whatever a command shows."""
    show()
    said = "".join(capsys.readouterr())
    assert "owned" in said
    assert is_visible(said)


@pytest.fixture(name="logs")
def _logs() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers, root.level, logging.getLogger("streamfl").level
    with warnings.catch_warnings():
        yield
    root.handlers = before[0]
    root.setLevel(before[1])
    logging.getLogger("streamfl").setLevel(before[2])


@pytest.mark.usefixtures("logs")
@pytest.mark.parametrize("style", ["console", "json"])
def test_a_line_of_the_log_is_one_line(capsys: pytest.CaptureFixture[str], style: Any) -> None:
    """Protects the log from strangers, who could control the terminal or forge lines. Libraries' lines
    too."""
    configure("info", style)
    forged = f"{EVIL}\n2026-01-01T00:00:00Z [critical ] all is lost"
    logger("streamfl.any").warning(forged, client=forged, clients=[forged], bare="a\x1b[2J")
    logging.getLogger("some.library").warning("from %s", forged)
    warnings.showwarning(RuntimeWarning(forged), RuntimeWarning, "library.py", 1)
    said = capsys.readouterr().err
    assert "owned" in said
    assert is_visible(said)
    assert len(said.splitlines()) == 3
    if style == "json":
        events = [json.loads(line)["event"] for line in said.splitlines()]
        assert events == [forged, f"from {forged}", f"RuntimeWarning: {forged}"]


@pytest.mark.usefixtures("logs")
def test_an_exit_code_is_logged_as_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    """Protects who searches the log for the code that the supervisor saw."""
    configure("info", "console")
    logger("streamfl.any").critical("ending", exit_code=ExitCode.STALLED)
    assert capsys.readouterr().err.endswith(" exit_code=70\n")


def test_a_notebook_shows_a_warning_as_it_is_safe(caplog: pytest.LogCaptureFixture) -> None:
    """Protects users who run streamfl without a log set up: the line is the same in a terminal."""
    logger("streamfl.any").warning(EVIL, client=EVIL)
    assert "owned" in caplog.messages[0]
    assert is_visible(caplog.messages[0])


def test_what_readyz_says_is_safe() -> None:
    """Protects people who query by hand: the reason why a worker is not ready may contain a client's name."""
    health = Health()
    health.note("role", f"client {EVIL} is too large")
    for page in ("/readyz", "/healthz"):
        said = _pages(health, bytes)[page]()[2].decode()
        assert "owned" in said
        assert is_visible(said)


def test_what_python_itself_says_is_safe() -> None:
    """Protects the terminal from unforeseen errors, in any thread, and from libraries' warnings without a log
    set up."""
    program = (
        "import logging, threading\n"
        "from streamfl.terminal.console import say_what_python_says\n"
        "say_what_python_says()\n"
        f"logging.getLogger('library').warning('w-%s', {EVIL!r})\n"
        f"thread = threading.Thread(target=lambda: {{}}[{EVIL!r} + 't'])\n"
        "thread.start()\n"
        "thread.join()\n"
        f"raise ValueError({EVIL!r})\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    ).stderr
    assert said.count("owned") >= 3
    assert "KeyError" in said
    assert "ValueError" in said
    assert is_visible(said)


def test_what_a_library_warns_of_is_a_line_of_the_log_in_every_command() -> None:
    """Protects who reads a command's output: the bare text of a client library stood among the command's own
    lines, without time or severity, and with whatever control characters it had."""
    program = (
        "import logging, sys, warnings\n"
        "from streamfl.cli import main\n"
        "sys.argv = ['streamfl', '--version']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        f"    logging.getLogger('rdkafka').warning('GETPID %s', {EVIL!r})\n"
        "    logging.getLogger('rdkafka').info('not shown')\n"
        f"    warnings.warn('GETPID %s' % {EVIL!r}, RuntimeWarning)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    ).stderr
    line = r"\d{4}-\d\d-\d\dT[\d:.]+Z \[warning  \] %sGETPID press.*owned.*\n"
    assert re.fullmatch(line % "" + line % "RuntimeWarning: ", said)
    assert is_visible(said)
