"""Whether the process can still open files. A client library that cannot reports a cluster that is away, or
nothing, and tries again for ever."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack

__all__ = ["check_files"]

# What a session opens, of kafka-python and a cluster of one broker.
SESSION_FILES = 16


def check_files(in_session: bool) -> None:
    """OSError if the process cannot open another file. in_session: whether it has those of a session
    already."""
    with ExitStack() as opened:
        try:
            for _ in range(1 if in_session else SESSION_FILES):
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            raise OSError(error.errno, f"{error.strerror}: raise the limit (ulimit -n)") from None
