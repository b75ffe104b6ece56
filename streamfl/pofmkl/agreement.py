"""Whether the server's model is made with this client's settings, by what the model's topic says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from streamfl.made_with import Difference
from streamfl.role import Notice

__all__ = ["Agreement"]


class Agreement:
    """What the server's records say of its settings; nothing of it is remembered, for the topic is read whole at every start.

    A marker with the right fingerprint settles it for its shard, whatever the record of settings says: that one only names keys.
    The last word of a shard counts, so that a record that somebody else wrote is believed until the server's next. own: this
    client's values of what all members need alike.
    """

    def __init__(self, own: Mapping[str, Any]) -> None:
        self._own = own
        self._differences: list[Difference] = []
        self._refused: dict[int, str | None] = {}
        self._said: str | None = None

    def told(self, settings: Mapping[str, Any]) -> None:
        """The server's record of the settings that its model is made with."""
        common = sorted(self._own.keys() & settings.keys())
        self._differences = [Difference(key, settings[key], self._own[key]) for key in common if self._own[key] != settings[key]]

    def fits(self, shard: int) -> None:
        """A version of the model that was taken."""
        self._refused[shard] = None

    def refused(self, shard: int, why: str) -> None:
        """A version of the model that does not fit this client."""
        self._refused[shard] = why

    @property
    def trouble(self) -> str | None:
        """Why this client and the server cannot learn together."""
        refused = [why for why in self._refused.values() if why is not None]
        if not refused and (self._refused or not self._differences):
            return None
        if not self._differences:
            return f"the server's model cannot be used: {refused[0]}; give client and server the same settings"
        keys = "; ".join(f"{one.key} is {one.shown_old} there and {one.shown_new} here" for one in self._differences)
        return f"the server's model is made with other settings, so nothing is learnt together: {keys}. Give both the same"

    def notices(self) -> Iterable[Notice]:
        """The trouble, whenever it is another."""
        if self.trouble != self._said:
            self._said = self.trouble
            if self._said is not None:
                yield Notice("configuration", self._said)
