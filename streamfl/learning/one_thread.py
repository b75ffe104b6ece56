"""Small products on one thread, in programs that are not ours."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["one_thread"]


class _OneThread:
    """Within it BLAS uses one thread. On a busy machine a product of a few numbers waits for a second one.

    Several threads may be within it at once: the last one out gives back what the first one found.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._within = 0
        self._libraries: ThreadpoolController | None = None
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._within:
                # Looking for the libraries takes longer than a step of learning.
                self._libraries = self._libraries or ThreadpoolController()
                self._limit = self._libraries.limit(limits=1, user_api="blas")
            self._within += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._lock:
            self._within -= 1
            if not self._within:
                self._limit.restore_original_limits()


one_thread = _OneThread()
