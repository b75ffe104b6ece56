"""A worker whose log nobody reads can still be ended."""

from __future__ import annotations

import subprocess
import sys

import pytest

from streamfl.terminal.exit_codes import ExitCode

# The pipe is full, as one to a program that does not read; whoever writes a line waits for ever.
UNREAD = """
import os, signal, threading
from contextlib import ExitStack
from streamfl.cli import run
from streamfl.runtime.log import configure, logger

reader, writer = os.pipe()
os.dup2(writer, 2)
os.set_blocking(2, False)
try:
    while True:
        os.write(2, b"." * 4096)
except BlockingIOError:
    os.set_blocking(2, True)
configure("info")
run.LEAVE_SECONDS = 0.5
stop, begun = threading.Event(), threading.Event()
soon = lambda what, *arguments: threading.Timer(0.5, what, arguments).start()
signal.signal(signal.SIGTERM, lambda *_: run._stop(stop, begun, ExitStack()))
"""


@pytest.mark.parametrize(
    ("moment", "code"),
    [
        ("soon(run._end_stalled)", ExitCode.STALLED),
        ("begun.set(); soon(os.kill, os.getpid(), signal.SIGTERM)", ExitCode.STALLED),
        ("soon(os.kill, os.getpid(), signal.SIGTERM)", 0),
        ("soon(run._end_lost, stop, [], ExitStack(), 'gone')", ExitCode.CONFIGURATION),
    ],
    ids=["the watchdog", "told", "told before it began", "a topic is gone"],
)
def test_a_worker_whose_log_nobody_reads_can_be_ended(moment: str, code: int) -> None:
    """Protects the supervisor that sends SIGTERM, and the group that waits for the watchdog: both first wrote
    a line, and waited for ever behind the one that hung."""
    program = f"{UNREAD}\n{moment}\nlogger('streamfl.any').info('nobody reads this')\n"
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert ended.returncode == code
