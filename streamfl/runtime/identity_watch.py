"""Reads a member's key file and the members' file again every few seconds, so that keys change without a
restart."""

from __future__ import annotations

import threading

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.role import ConfigurationError
from streamfl.identity import renew_identities
from streamfl.runtime.health import Health
from streamfl.runtime.log import logger

__all__ = ["IdentityWatch"]

log = logger(__name__)

EVERY_SECONDS = 5.0


class IdentityWatch:
    """Looks at the files on its own thread between start and close. Unusable files change nothing, and
    ``health`` reports them."""

    def __init__(self, settings: RoleSettings, health: Health) -> None:
        self._settings, self._health = settings, health
        self._told = ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="identity", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._closed.set()
        self._thread.join()

    def look(self) -> None:
        """Look at the files once."""
        wrong = ""
        try:
            if renew_identities(self._settings):
                log.info("changed keys of members were loaded", members=self._settings.federation.members)
        except Exception as error:
            # An error must not end the watch, or a worker whose keys have changed would stay ready with the
            # old ones.
            wrong = (
                str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"
            )
            if wrong != self._told:
                log.error("changed keys of members cannot be used: the earlier ones stay in use", cause=wrong)
        self._told = wrong
        self._health.note("keys", wrong and f"the key file or the members' file cannot be used: {wrong}")

    def _watch(self) -> None:
        while not self._closed.wait(EVERY_SECONDS):
            self.look()
