"""Runs small matrix products on one thread, in programs that are not ours."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["one_thread"]


class _OneThread:
    """Within this context BLAS uses one thread. On a busy machine a product of a few numbers would wait for a
    second thread.

    Several threads may be within it at once: the last to leave restores the setting that the first found.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._within = 0
        self._libraries: list[Any] | None = None
        self._limited: list[tuple[Any, int]] = []

    def __enter__(self) -> None:
        with self._lock:
            if not self._within:
                # Finding the libraries takes longer than a learning step. Setting takes five times as long as
                # reading.
                if self._libraries is None:
                    self._libraries = [
                        one for one in ThreadpoolController().lib_controllers if one.user_api == "blas"
                    ]
                asked = [(one, one.get_num_threads()) for one in self._libraries]
                self._limited = [(one, threads) for one, threads in asked if threads != 1]
                for one, _ in self._limited:
                    one.set_num_threads(1)
            self._within += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._within -= 1
            if not self._within:
                for one, threads in self._limited:
                    one.set_num_threads(threads)


one_thread = _OneThread()
