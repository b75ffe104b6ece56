"""Keys and secrets of a federation in one process, where nobody has to keep any from the others: they follow from the seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from streamfl.quasi_newton import bignum
from streamfl.quasi_newton.config import COORDINATOR, GUEST, EncryptionSection, QuasiNewtonSettings
from streamfl.quasi_newton.key_file import make_key_file
from streamfl.seeding import rng_for

__all__ = ["MadeUp"]


class MadeUp:
    """Files in a folder that nobody else may read.

    settings: of any member. What it says of files is not looked at. ConfigurationError where encryption needs the extra.
    """

    def __init__(self, settings: QuasiNewtonSettings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._keys: tuple[str, str] | None = None

    def encryption(self, kind: str, party: str) -> EncryptionSection:
        """``[encryption]`` of a member; party: its name, empty at the coordinator."""
        settings = self._settings
        update: dict[str, object] = dict.fromkeys(("key_file", "key_fingerprint", "secret_file", "link_secret_file"))
        if settings.encryption.precision == "paillier":
            if self._keys is None:
                bignum.require()
                path = self._folder / "keys.json"
                key = make_key_file(path, settings.encryption.key_bits, self._draws("key"))
                self._keys = str(path), key.public.fingerprint
            update["key_fingerprint"] = self._keys[1]
            if kind == COORDINATOR:
                update["key_file"] = self._keys[0]
        if kind != COORDINATOR:
            links = {host: self._secret("link", host) for host in settings.federation.hosts}
            update |= {"secret_file": self._secret("party", party), "link_secret_file": links if kind == GUEST else links[party]}
        return settings.encryption.model_copy(update=update)

    def _secret(self, of: str, name: str) -> str:
        path = self._folder / f"{of}-{name}.secret"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_bytes(self._draws(of, name)(32))
        return str(path)

    def _draws(self, *of: str) -> Callable[[int], bytes]:
        federation = self._settings.federation
        return rng_for(federation.seed, "quasi-newton", "simulation", federation.name, *of).bytes
