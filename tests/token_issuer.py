"""A token endpoint of OAuth 2.0 on this machine, with the keys that a broker uses to check its tokens."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

__all__ = ["TokenIssuer", "issuing"]

ISSUER, AUDIENCE = "https://sso.example.com", "kafka"


class TokenIssuer:
    """Issues tokens that are valid for ``lasting`` seconds; below 0 they have already expired.

    secrets: by client.
    given: number of issued tokens.
    away: whether it answers with errors.
    """

    def __init__(self, secrets: dict[str, str]) -> None:
        self.secrets = secrets
        self.lasting = 300.0
        self.given = 0
        self.away = False
        self.url = ""
        self._key = rsa.generate_private_key(65537, 2048)

    def token(self, client: str, asked_with: str, lasting: float) -> str:
        """A token for a client, signed with RS256."""
        # Whole seconds, as usual. Rounded up, because otherwise a token would expire before the answer's
        # expiry.
        now = int(time.time()) + 1
        claims = {
            "sub": client,
            "iss": ISSUER,
            "aud": AUDIENCE,
            "iat": now + min(0, int(lasting)) - 2,
            "exp": now + int(lasting),
        }
        parts = ({"alg": "RS256", "typ": "JWT", "kid": "one"}, {**claims, "scope": asked_with})
        content = ".".join(_text(json.dumps(part).encode()) for part in parts)
        signature = self._key.sign(content.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{content}.{_text(signature)}"

    def keys(self) -> dict[str, Any]:
        """The public key in the form of a JSON Web Key Set."""
        numbers = self._key.public_key().public_numbers()
        n, e = (
            _text(number.to_bytes((number.bit_length() + 7) // 8, "big")) for number in (numbers.n, numbers.e)
        )
        return {"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "one", "n": n, "e": e}]}


@contextmanager
def issuing(secrets: dict[str, str]) -> Iterator[TokenIssuer]:
    """An issuer that answers at ``url``: POST /token and GET /keys."""
    issuer = TokenIssuer(secrets)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, issuer.keys())

        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            login = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
            client, _, secret = login.partition(":")
            if issuer.away:
                self._answer(503, {"error": "temporarily_unavailable"})
            elif (
                not secret
                or issuer.secrets.get(client) != secret
                or "grant_type=client_credentials" not in form
            ):
                self._answer(401, {"error": "invalid_client"})
            else:
                issuer.given += 1
                token = issuer.token(client, "kafka", issuer.lasting)
                self._answer(
                    200, {"access_token": token, "token_type": "Bearer", "expires_in": issuer.lasting}
                )

        def log_message(self, *arguments: Any) -> None:
            pass

        def _answer(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    issuer.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
