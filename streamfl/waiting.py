"""What a command shows on stderr while it takes long: nothing for 3 seconds, then a bar on a terminal, elsewhere a line each 10 seconds.

One display serves a command. A piece of work that begins within another is shown in its place until it is over.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from rich.console import Console

from streamfl.console import say

__all__ = ["Waiting", "waiting"]

SILENT_SECONDS = 3.0
LINE_SECONDS = 10.0
BAR_SECONDS = 0.2


class Waiting:
    """A piece of work. Whoever does it calls this to tell how much is done, and hears whether it is to end with what is there.

    of: what is being worked off; it may be changed. interrupted: whether Ctrl-C was pressed.
    """

    def __init__(self, of: str) -> None:
        self.of = of
        self.done = 0.0
        self.total: float | None = None
        self.interrupted = False
        self._begun = time.monotonic()

    def __call__(self, done: float, total: float = 1.0) -> bool:
        """done, total: in any unit; by default a share. True: it is to end."""
        self.done, self.total = done, total
        return self.interrupted

    def pause(self, seconds: float) -> None:
        """Sleep, but not beyond Ctrl-C."""
        until = time.monotonic() + seconds
        while not self.interrupted and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, BAR_SECONDS))

    def line(self) -> str:
        """How it stands, in words."""
        seconds = time.monotonic() - self._begun
        if not self.total:
            return f"{self.of}: {seconds:.0f} s"
        share = self.done / self.total
        counted = f"{self.done:,.0f} of {self.total:,.0f}, " if self.total > 1.0 else ""
        left = f", about {seconds / share - seconds:.0f} s left" if share > 0.0 else ""
        return f"{self.of}: {counted}{share:.0%}, {seconds:.0f} s{left}"

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        """A handler of SIGINT. The first is heard when the work has come so far that its figures fit together."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        self.of = f"{self.of}, stopping"


class _Display:
    """Shows the innermost piece of work from a thread of its own: a command may be waiting for a cluster that says nothing.

    write: takes lines; None: stderr, and a bar if that is a terminal.
    """

    def __init__(self, write: Callable[[str], object] | None) -> None:
        self.works: list[Waiting] = []
        self._write = write
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, name="waiting", daemon=True)

    def begin(self) -> None:
        # Where the machine gives no thread, nothing is shown.
        with suppress(RuntimeError):
            self._thread.start()

    def end(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _show(self) -> None:
        if self._over.wait(SILENT_SECONDS):
            return
        console = Console(stderr=True)
        if self._write is None and console.is_terminal:
            self._draw(console)
            return
        write = self._write or say
        while True:
            write(self.works[-1].line())
            if self._over.wait(LINE_SECONDS):
                return

    def _draw(self, console: Console) -> None:
        # Whoever is done within seconds does not load it.
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn()
        # Results go to stdout, whatever is shown here.
        with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
            shown, task = None, bar.add_task("")
            while True:
                if (work := self.works[-1]) is not shown:
                    bar.reset(task)
                    shown = work
                bar.update(task, description=work.of, completed=work.done, total=work.total)
                if self._over.wait(BAR_SECONDS):
                    return


_display: _Display | None = None


@contextmanager
def waiting(of: str, *, stops: bool = False, write: Callable[[str], object] | None = None) -> Iterator[Waiting]:
    """Within it a command may take long.

    of: what is being worked off. stops: at the first Ctrl-C the work is told to end with what is there; the second ends the command.
    write: takes the lines instead of stderr, such as a log that a worker writes.
    """
    global _display
    work = Waiting(of)
    outermost = _display is None
    display = _display = _display or _Display(write)
    display.works.append(work)
    # Python hears signals in one thread alone.
    stops = stops and threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, work.stop) if stops else None
    if outermost:
        display.begin()
    try:
        yield work
    finally:
        if outermost:
            display.end()
            _display = None
        display.works.remove(work)
        if stops:
            signal.signal(signal.SIGINT, handler)
