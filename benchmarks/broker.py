"""A real broker for as long as something is measured on it."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any


def running_broker() -> AbstractContextManager[Any]:
    """The tests' broker, with its ``address`` and its ``url``. It lives with the tests, which are not
    installed."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from broker import Broker

    return Broker()
