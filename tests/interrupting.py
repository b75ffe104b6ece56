"""Sends Ctrl-C at a known point of a command's work."""

from __future__ import annotations

import signal

import pytest

from streamfl.terminal.progress import Progress

__all__ = ["interrupt_at"]


def interrupt_at(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Send SIGINT to this process once, when this share of a piece of work is done."""
    tell, pressed = Progress.__call__, []

    def told(work: Progress, done: float, total: float = 1.0) -> bool:
        if not pressed and done >= share * total:
            pressed.append(done)
            signal.raise_signal(signal.SIGINT)
        return tell(work, done, total)

    monkeypatch.setattr(Progress, "__call__", told)
