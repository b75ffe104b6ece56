"""A worker can be ended, whatever its log and its operator do."""

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


@pytest.mark.long
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


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_worker_that_is_told_twice_ends_with_its_exit_code(number: str) -> None:
    """Protects who presses Ctrl-C twice: the second came while Python shut down, and the process ended by the
    signal although it had committed and left its group."""
    program = f"""
import os, signal, threading
from contextlib import ExitStack
from streamfl.cli import run

stop, begun = threading.Event(), threading.Event()
begun.set()
with ExitStack() as leaving:
    signal.signal(signal.{number}, lambda *_: run._stop(stop, begun, leaving))
    os.kill(os.getpid(), signal.{number})
    stop.wait()

class Shutdown:
    # Python deletes what a module holds when it handles signals no more.
    def __del__(self, kill=os.kill, process=os.getpid(), number=signal.{number}):
        kill(process, number)

held = Shutdown()
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert ended.returncode == 0
