"""The window of a fit. It is frozen once. From then on, everything that is released is computed from it."""

from __future__ import annotations

import numpy as np

from streamfl.contract.role import BadRecord
from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE, RESIDUAL_ONE, Window, assemble
from streamfl.dp_frank_wolfe.state import WINDOW
from streamfl.state.changelog import ChangedParts
from streamfl.state.value_fragments import ValueFragments

__all__ = ["FrozenWindow"]

LABEL_BYTES = 8


class FrozenWindow:
    """Remembers columns as 16-bit numbers row by row, then labels as 64-bit numbers.

    rows, columns: how many it has.
    """

    def __init__(self, parts: ChangedParts, rows: int, columns: int) -> None:
        self._rows = rows
        self._columns = columns
        self._fragments = ValueFragments(parts, WINDOW, self._size, registered=False)
        parts.register(WINDOW.prefix, self._restore)
        self._window: Window | None = None

    @property
    def _size(self) -> int:
        return self._rows * (2 * self._columns + LABEL_BYTES)

    def freeze(self, window: Window) -> None:
        """Replaces the stored window."""
        self._window = window
        self._fragments.write(window.columns.astype("<i2").tobytes() + window.labels.astype("<i8").tobytes())

    def clear(self) -> None:
        """Forgets the window once the fit has ended."""
        self._window = None
        self._fragments.clear()

    @property
    def window(self) -> Window:
        """The frozen window. Raises BadRecord if there is none."""
        if self._window is None:
            self._window = self._read()
        return self._window

    def _restore(self, name: bytes, value: bytes) -> None:
        self._window = None
        self._fragments.restore(name, value)

    def _read(self) -> Window:
        content = self._fragments.content
        if len(content) != self._size:
            raise BadRecord(
                "malformed", f"a frozen window of {len(content)} bytes in state, not {self._size}"
            )
        at = 2 * self._rows * self._columns
        columns = np.frombuffer(content[:at], "<i2").astype(np.int16).reshape(self._rows, self._columns)
        labels = np.frombuffer(content[at:], "<i8").astype(np.int64)
        if (
            np.any(columns > FEATURE_ONE)
            or np.any(columns < -FEATURE_ONE)
            or np.any(np.abs(labels) > RESIDUAL_ONE)
        ):
            raise BadRecord("malformed", "a frozen window in state with numbers beyond their bounds")
        return assemble(columns, labels)
