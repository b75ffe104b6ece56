"""Progress of a long command on stderr: nothing for 3 seconds, then a bar on a terminal, or a line each 10
seconds elsewhere.

A command has one display. A piece of work that begins within another is shown in its place until it ends.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from rich.console import Console

from streamfl.terminal.console import say
from streamfl.terminal.printable import printable

__all__ = ["Progress", "progress"]

SILENT_SECONDS = 3.0
LINE_SECONDS = 10.0
BAR_SECONDS = 0.2


class Progress:
    """The progress of a piece of work. The code that does the work calls it with how much is done; True asks
    it to stop early.

    of: the name of the work.
    interrupted: how far it had come at Ctrl-C; empty if nobody pressed it.
    """

    def __init__(self, of: str) -> None:
        self.interrupted = ""
        self.begin(of)

    def begin(self, of: str) -> None:
        """Begin another piece of work."""
        self.of = of
        self.done = 0.0
        self.total: float | None = None
        self._begun = time.monotonic()

    def __call__(self, done: float, total: float = 1.0) -> bool:
        """done, total: in any unit; by default done is a share of 1. Returns True if the work has to stop
        with what is there."""
        self.done, self.total = done, total
        return bool(self.interrupted)

    def pause(self, seconds: float) -> None:
        """Sleep, but not beyond Ctrl-C."""
        until = time.monotonic() + seconds
        while not self.interrupted and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, BAR_SECONDS))

    def line(self) -> str:
        """The progress in words."""
        seconds = time.monotonic() - self._begun
        share = self.done / self.total if self.total else 0.0
        left = f", about {seconds / share - seconds:.0f} s left" if share else ""
        return f"{self._stand()}, {seconds:.0f} s{left}"

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        """A handler of SIGINT. The first stops the work where its figures fit together; the second raises
        KeyboardInterrupt."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = self._stand()
        self.of = f"{self.of}, stopping"

    def _stand(self) -> str:
        if not self.total:
            return self.of
        counted = f"{self.done:,.0f} of {self.total:,.0f}, " if self.total > 1.0 else ""
        return f"{self.of}: {counted}{self.done / self.total:.0%}"


class _Display:
    """Shows the innermost piece of work from a thread of its own, because a command may wait for a cluster
    that does not answer.

    write: takes lines; None: stderr, and a bar if that is a terminal.
    """

    def __init__(self, write: Callable[[str], object] | None) -> None:
        self.works: list[Progress] = []
        self.write = write or say
        self._bar = write is None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)

    def begin(self) -> None:
        # Without a free thread the command goes on and shows nothing.
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
        if self._bar and console.is_terminal:
            self._draw(console)
            return
        while True:
            self.write(self.works[-1].line())
            if self._over.wait(LINE_SECONDS):
                return

    def _draw(self, console: Console) -> None:
        # Imported here, so that a command that ends within seconds does not load it.
        from rich.progress import (
            BarColumn,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bars

        text = TextColumn("{task.description}", markup=False)
        columns = text, BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn()
        # Results go to stdout, whatever is shown here.
        with Bars(*columns, console=console, transient=True, redirect_stdout=False) as bars:
            shown, task = (work := self.works[-1]), bars.add_task(printable(work.of), total=None)
            while True:
                if (work := self.works[-1]) is not shown:
                    bars.remove_task(task)
                    shown, task = work, bars.add_task(printable(work.of), total=None)
                bars.update(task, description=printable(work.of), completed=work.done, total=work.total)
                if self._over.wait(BAR_SECONDS):
                    return


_display: _Display | None = None


@contextmanager
def progress(
    of: str, *, stops: bool = False, write: Callable[[str], object] | None = None
) -> Iterator[Progress]:
    """Shows progress while the block runs. If Ctrl-C ends it, the last line says how far the work had come.

    of: the name of the work.
    stops: the first Ctrl-C asks the work to end with what is there; a second ends the command.
    write: takes the lines instead of stderr, for instance into a worker's log.
    """
    global _display
    work = Progress(of)
    outermost = _display is None
    display = _display = _display or _Display(write)
    display.works.append(work)
    # Python handles signals in the main thread alone. A shell's background job ignores SIGINT and has to go
    # on ignoring it.
    handler = signal.getsignal(signal.SIGINT)
    stops = stops and threading.current_thread() is threading.main_thread() and handler is not signal.SIG_IGN
    if stops:
        signal.signal(signal.SIGINT, work.stop)
    if outermost:
        display.begin()
    try:
        yield work
    except KeyboardInterrupt as error:
        # Only the innermost piece of work writes the line.
        if not getattr(error, "__notes__", ()):
            error.add_note(work.line())
            display.write(f"interrupted: {work.line()}")
        raise
    finally:
        if outermost:
            display.end()
            _display = None
        display.works.remove(work)
        if stops:
            signal.signal(signal.SIGINT, handler)
