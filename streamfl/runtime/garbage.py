"""Keeps what lives long out of full garbage collections, which otherwise stop a step for microseconds for
each client."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

__all__ = ["long_lived_set_aside"]

FULL = 2


class _LongLived:
    """After a full collection, sets aside what survived it, so that the next one looks only at what is newer.

    Cycles that are set aside and die are not found. So once as many objects were added as there were when all
    were looked at, the next full collection looks at all again.
    """

    def __init__(self) -> None:
        self._known = self._added = 0
        self._all = True

    def __call__(self, phase: str, information: Mapping[str, int]) -> None:
        if phase != "stop" or information["generation"] != FULL:
            return
        if not self._all:
            self._added += len(gc.get_objects(FULL))
        gc.freeze()
        if self._all:
            self._known, self._added = gc.get_freeze_count(), 0
        self._all = self._added > self._known
        if self._all:
            gc.unfreeze()


@contextmanager
def long_lived_set_aside() -> Iterator[None]:
    """While it is entered, full collections skip objects that survived an earlier one. For a process that
    serves a single worker."""
    rule = _LongLived()
    gc.callbacks.append(rule)
    try:
        yield
    finally:
        gc.callbacks.remove(rule)
        gc.unfreeze()
