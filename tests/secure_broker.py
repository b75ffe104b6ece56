"""A broker set up by ``deploy/security``: users with passwords, certificates and tokens, and rights for each.

The files are used unchanged, except that hosts, ports and folders are replaced by this machine's.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from access import OPERATIONS, PATTERNS, RESOURCES
from broker import Broker, free_ports
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from token_issuer import TokenIssuer, issuing

from streamfl.runtime.rights import Right

__all__ = ["SECRETS", "SECURITY", "SecureBroker", "secure_broker"]

SECURITY = Path(__file__).parents[1] / "deploy" / "security"
# Secrets of the client, by user and password and at the token endpoint.
SECRETS = {"press-client": "of-the-client", "nobody": "without-rights"}
EVERYTHING = ACLFilter(
    None,
    None,
    ACLOperation.ANY,
    ACLPermissionType.ANY,
    ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
)
NAMED_PORTS = ("9093", "9094", "9095", "9096")


@dataclass
class SecureBroker:
    """broker: with the administrator's options.
    issuer: issues its tokens.
    folder: has the certificates.
    places: replacements in the files' text.
    admin: the administrator's client. There is one, because each takes a handshake.
    """

    broker: Broker
    issuer: TokenIssuer
    folder: Path
    places: dict[str, str]
    admin: Any

    def local(self, text: str) -> str:
        """The text of a file of ``deploy/security``, with this machine's hosts, ports and folders."""
        for named, here in self.places.items():
            text = text.replace(named, here)
        return text

    def allow(self, rights: list[Right]) -> None:
        """Like ``kafka-acls.sh --add``. Returns once the broker applies the rights."""
        acls = [
            ACL(
                right.principal,
                "*",
                OPERATIONS[operation],
                ACLPermissionType.ALLOW,
                ResourcePattern(RESOURCES[right.resource], right.name, PATTERNS[right.pattern]),
            )
            for right in rights
            for operation in right.operations
        ]
        assert not self.admin.create_acls(acls)["failed"]
        self._until(EVERYTHING, lambda found: found.issuperset(acls))

    def take(self, right: Right | None = None) -> None:
        """Like ``kafka-acls.sh --remove``, for this right or for all. Returns once the broker applies it."""
        gone = EVERYTHING
        if right is not None:
            pattern = ResourcePatternFilter(RESOURCES[right.resource], right.name, PATTERNS[right.pattern])
            gone = ACLFilter(right.principal, None, ACLOperation.ANY, ACLPermissionType.ANY, pattern)
        self.admin.delete_acls([gone])
        self._until(gone, lambda found: not found)

    def _until(self, what: ACLFilter, reached: Callable[[set[ACL]], bool]) -> None:
        """The controller answers before the broker applies the change."""
        deadline = time.monotonic() + 30
        while not reached(set(self.admin.describe_acls(what)[0])):
            assert time.monotonic() < deadline
            time.sleep(0.02)


@contextmanager
def secure_broker(folder: Path) -> Iterator[SecureBroker]:
    """The broker with its users and without any rights. The certificates are made in the folder."""
    certificates = [
        str(SECURITY / "certificates.sh"),
        str(folder),
        "IP:127.0.0.1",
        "admin",
        "press-server",
        "stranger",
    ]
    subprocess.run(certificates, check=True)
    ports = dict(zip(NAMED_PORTS, free_ports(4), strict=True))
    with issuing(SECRETS) as issuer:
        places = {
            **{f"broker.example.com:{named}": f"127.0.0.1:{port}" for named, port in ports.items()},
            **{f"://:{named}": f"://127.0.0.1:{port}" for named, port in ports.items()},
            "https://sso.example.com/keys": f"{issuer.url}/keys",
            "https://sso.example.com/token": f"{issuer.url}/token",
            "/etc/kafka/certificates": str(folder),
            "/etc/streamfl": str(folder),
        }
        text = (SECURITY / "broker.properties").read_text(encoding="utf-8")
        for named, here in places.items():
            text = text.replace(named, here)
        lines = [line for line in text.splitlines() if line and not line.startswith(("#", "log.dirs="))]
        properties = {name: value for name, _, value in (line.partition("=") for line in lines)}
        # Options of the test's own broker, whose listener has another name.
        admin = {
            "security_protocol": "SSL",
            "ssl_cafile": str(folder / "ca.pem"),
            "ssl_certfile": str(folder / "admin.pem"),
            "ssl_keyfile": str(folder / "admin.key"),
        }
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer.url}/keys"
        with Broker(properties, admin, port=ports["9094"], java=[allowed]) as broker:
            users = [
                UserScramCredentialUpsertion(name, ScramMechanism.SCRAM_SHA_512, secret)
                for name, secret in SECRETS.items()
            ]
            with closing(KafkaAdminClient(bootstrap_servers=broker.address, **broker.options)) as client:
                client.alter_user_scram_credentials(users)
                yield SecureBroker(broker, issuer, folder, places, client)
