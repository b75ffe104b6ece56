"""The entry point: loads the command line, and exits with code 71 if the machine lacks the resources for it.

At first only the standard library is imported here: under a memory limit every other import may fail.
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
import sys

from streamfl.terminal.exit_codes import ExitCode

__all__ = ["main"]

# Bytes of address space that have to be available; they are mapped and given back.
LEAST_BYTES = 256 * 1024 * 1024
# Their code is 0 whenever they are told to end, also before their handlers of signals are loaded.
WORKERS = ("run", "rekey")
SCARCE = (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOSPC)


def main() -> None:
    """Run the command line of this process and exit with its code."""
    if sys.argv[1:2] in ([name] for name in WORKERS):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os._exit(0))
    _lead_closed_streams_nowhere()
    # The commands use one thread for matrix products, and OpenBLAS would reserve memory for all processors at
    # loading.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        # Without this memory OpenBLAS would end the process itself, with code 1.
        mmap.mmap(-1, LEAST_BYTES).close()
        from streamfl.cli import main as run
        from streamfl.terminal.console import say_what_python_says
    except (ImportError, OSError, MemoryError, RuntimeError, SystemError) as error:
        _end(f"streamfl cannot be loaded: {_cause(error)}")
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)
    say_what_python_says()
    try:
        run()
    except ImportError as error:
        # A command is imported only when it is run.
        _end(f"streamfl cannot be loaded: {_cause(error)}")
    except MemoryError as error:
        _end(f"out of memory: {str(error) or 'a limit (ulimit -v, a container) is too low for this work'}")
    except (OSError, RuntimeError) as error:
        if not (isinstance(error, OSError) and error.errno in SCARCE) and "start new thread" not in str(
            error
        ):
            raise
        _end(f"the machine gives no more: {error}")


def _lead_closed_streams_nowhere() -> None:
    """Whoever starts a daemon may have closed its streams. Python has None for them. The next socket would
    get the number of one, and what a library says would be written to it."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _end(text: str) -> None:
    # Not by Python's print, which may need memory, and without exit handlers of modules that were not set up
    # completely.
    os.write(2, f"error: {' '.join(text.split())}\n".encode(errors="replace")[:2000])
    os._exit(ExitCode.LACKING_RESOURCES)


def _cause(error: BaseException) -> str:
    """The original error: libraries wrap a failed import in pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (
        str(error) or "out of memory"
        if isinstance(error, MemoryError)
        else f"{type(error).__name__}: {error}"
    )
