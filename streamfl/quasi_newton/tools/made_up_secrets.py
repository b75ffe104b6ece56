"""Keys and secrets for a federation in one process, whose members hide nothing from each other. They repeat
in every run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from streamfl.contract.seeding import rng_for
from streamfl.quasi_newton.config import COORDINATOR, GUEST, QuasiNewtonSettings
from streamfl.quasi_newton.encryption import bignum, key_file
from streamfl.quasi_newton.encryption.section import EncryptionSection

__all__ = ["MadeUp"]


class MadeUp:
    """Secret files in a folder that nobody else may read. Each run of ``streamfl simulate`` has its own,
    derived from the seed.

    settings: of any member. Its settings of files are ignored. ConfigurationError if encryption needs the
    extra.
    """

    def __init__(self, settings: QuasiNewtonSettings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._keys: tuple[str, str] | None = None

    def encryption(self, kind: str, party: str) -> EncryptionSection:
        """The section ``[encryption]`` of a member. party: its name; empty for the coordinator."""
        settings = self._settings
        update: dict[str, object] = dict.fromkeys(
            ("key_file", "key_fingerprint", "secret_file", "link_secret_file")
        )
        if settings.encryption.precision == "paillier":
            if self._keys is None:
                bignum.require()
                file = self._folder / "keys.json"
                private = key_file.make_key_file(file, settings.encryption.key_bits, self._draws("key"))
                self._keys = str(file), private.public.fingerprint
            update["key_fingerprint"] = self._keys[1]
            if kind == COORDINATOR:
                update["key_file"] = self._keys[0]
        if kind != COORDINATOR:
            links = {host: self._secret("link", host) for host in settings.federation.hosts}
            update |= {
                "secret_file": self._secret("party", party),
                "link_secret_file": links if kind == GUEST else links[party],
            }
        return settings.encryption.model_copy(update=update)

    def _secret(self, of: str, name: str) -> str:
        file = self._folder / f"{of}-{name}.secret"
        if not file.exists():
            file.touch(mode=0o600)
            file.write_bytes(self._draws(of, name)(32))
        return str(file)

    def _draws(self, *of: str) -> Callable[[int], bytes]:
        federation = self._settings.federation
        return rng_for(federation.seed, "quasi-newton", "simulation", federation.name, *of).bytes
