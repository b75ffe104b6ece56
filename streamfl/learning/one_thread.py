"""Small products on one thread, in programs that are not ours."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager

from threadpoolctl import ThreadpoolController

__all__ = ["one_thread"]


def one_thread() -> AbstractContextManager[object]:
    """Within it BLAS uses one thread: on a busy machine a product of a few numbers waits for a second one."""
    # Looking for the libraries takes longer than a step of learning.
    limited: AbstractContextManager[object] = _libraries().limit(limits=1, user_api="blas")
    return limited


@functools.cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()
