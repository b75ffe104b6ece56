"""Checks, from the records of the model topic, whether the server's model is made with this client's
settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from streamfl.contract.role import OperatorNotice
from streamfl.state.state_settings import Difference, StateSettings

__all__ = ["ServerSettingsCheck"]


class ServerSettingsCheck:
    """Compares the settings in the server's records with the client's. Nothing is stored: the topic is read
    whole at every start.

    A marker with the right fingerprint decides for its shard, whatever the record of settings contains. The
    record only names the keys that differ. The last marker of a shard counts: a marker from another writer is
    believed until the server's next.

    own: this client's values of the settings that all members need alike.
    pace: its values of settings that the server needs alike too, but that the model does not depend on. Only
        the record has them, so a difference is logged and is no trouble.
    """

    def __init__(self, own: Mapping[str, Any], pace: Mapping[str, Any] | None = None) -> None:
        self._own = own
        self._pace = pace or {}
        self._differences: list[Difference] = []
        self._other_pace: list[Difference] = []
        self._said_pace: list[Difference] = []
        self._refused: dict[int, str | None] = {}
        self._said: str | None = None

    def told(self, settings: Mapping[str, Any]) -> None:
        """Take the server's record of the settings that its model is made with."""
        self._differences = _differences(self._own, settings)
        self._other_pace = [one for one in _differences(self._pace, settings) if not _go_together(one)]

    def fits(self, shard: int) -> None:
        """Note that a version of the model was accepted."""
        self._refused[shard] = None

    def refused(self, shard: int, why: str) -> None:
        """Note that a version of the model does not fit this client. why: the reason."""
        self._refused[shard] = why

    @property
    def trouble(self) -> str | None:
        """Why this client and the server cannot learn together."""
        refused = [why for why in self._refused.values() if why is not None]
        if not refused and (self._refused or not self._differences):
            return None
        if not self._differences:
            return (
                f"the server's model cannot be used: {refused[0]}; use the same settings at client and server"
            )
        keys = _listed(self._differences)
        return (
            f"the server's model is made with other settings, so nothing is learnt together: {keys}. Use the "
            "same settings at both"
        )

    def notices(self) -> Iterable[OperatorNotice]:
        """The trouble, and the other settings that differ, each time that they change."""
        if self.trouble != self._said:
            self._said = self.trouble
            if self._said is not None:
                yield OperatorNotice("configuration", self._said, of_records=True)
        if self._other_pace != self._said_pace:
            self._said_pace = self._other_pace
            if self._said_pace:
                text = (
                    f"the server has other settings, but both need the same: {_listed(self._said_pace)}. "
                    "Give both the same"
                )
                yield OperatorNotice("other_settings", text, of_records=True)


def _differences(own: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Difference]:
    # A value that is too long, as of hundreds of features, is a digest in the server's record.
    wrong, _ = StateSettings(must_stay=own).compare(settings)
    return wrong


def _go_together(one: Difference) -> bool:
    """Whether the two values fit together: a server that counts updates serves bounded and async clients
    alike."""
    return one.key == "learning.staleness" and "lockstep" not in (one.old, one.new)


def _listed(differences: Iterable[Difference]) -> str:
    return "; ".join(f"{one.key} is {one.shown_old} there and {one.shown_new} here" for one in differences)
