"""OAuth 2.0 tokens to log in to a cluster: from a token endpoint, or from a user's own function.

A token is requested before a client is made, so that errors show at the start, and again before it expires.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable
from streamfl_connectors.web import ask, basic

__all__ = [
    "ENDPOINT_OPTIONS",
    "PROVIDER",
    "Token",
    "Tokens",
    "check_mechanism",
    "take_endpoint",
    "take_provider",
]

PROVIDER = "token_provider"
ENDPOINT, IDENTIFIER, SECRET = (
    f"sasl_oauthbearer_{name}" for name in ("token_endpoint_url", "client_id", "client_secret")
)
SCOPE, EXTENSIONS, AUTHORITY = "sasl_oauthbearer_scope", "sasl_oauthbearer_extensions", "https_ca_location"
# As librdkafka calls them, with underscores.
ENDPOINT_OPTIONS = (ENDPOINT, IDENTIFIER, SECRET, SCOPE, EXTENSIONS, AUTHORITY)
# Runs on kafka-python's own thread, which has to send a sign of life every few seconds meanwhile.
ANSWER_SECONDS = 5.0
# Share of a token's life after which it is renewed, so that a slow endpoint has time. librdkafka asks at 80%,
# and needs a new one.
USED_UP = 0.75
# How long a token lasts if the endpoint does not say it.
LASTING_SECONDS = 60.0


class Token(NamedTuple):
    """text: as it is sent. ends: when it expires, in seconds since 1970."""

    text: str
    ends: float


class Tokens:
    """Returns a token that stays valid for a while; safe to use from any thread.

    fetch: gets a new token.
    extensions: what is sent beside the token, by name.
    clock: seconds since 1970.
    """

    def __init__(
        self,
        fetch: Callable[[], Token],
        extensions: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.extensions = dict(extensions or {})
        self._fetch = fetch
        self._clock = clock
        self._lock = threading.Lock()
        self._token = Token("", 0.0)
        self._given_at = self._renew_at = 0.0

    def token(self) -> Token:
        """A token. ConfigurationError if there is none with these settings, BusUnavailable if there is none
        now."""
        with self._lock:
            now = self._clock()
            # Also if the clock was set back: brokers go by their own, by which the token may be over.
            if not self._given_at <= now < self._renew_at:
                try:
                    self._token = self._fetch()
                except BusUnavailable:
                    if now >= self._token.ends:
                        raise
                    return self._token
                if self._token.ends <= now:
                    over = now - self._token.ends
                    raise ConfigurationError(
                        f"bus.options: the new token expired {over:.0f} s ago: check the clocks"
                    )
                self._given_at = now
                self._renew_at = now + USED_UP * max(0.0, self._token.ends - now)
            return self._token


def check_mechanism(mechanism: Any, tokens: Tokens | None) -> None:
    """ConfigurationError if the mechanism wants tokens and there are none, or the other way round."""
    if mechanism == "OAUTHBEARER" and tokens is None:
        raise ConfigurationError(
            f"bus.options: OAUTHBEARER needs {ENDPOINT}, {IDENTIFIER} and {SECRET}, or {PROVIDER}"
        )
    if mechanism != "OAUTHBEARER" and tokens is not None:
        raise ConfigurationError(
            "bus.options: tokens only have a meaning with sasl_mechanism = 'OAUTHBEARER'"
        )


def take_provider(options: dict[str, Any]) -> Tokens | None:
    """Take ``token_provider`` out of the options: a function ``module:attribute`` that returns a token and
    when it expires."""
    place = options.pop(PROVIDER, None)
    if place is None:
        return None
    module, _, name = place.partition(":") if isinstance(place, str) else ("", "", "")
    if not module or not name:
        raise ConfigurationError(f"bus.options.{PROVIDER}: module:attribute is expected")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"bus.options.{PROVIDER} = {place!r} cannot be loaded: {error}") from None

    def fetch() -> Token:
        try:
            text, ends = function()
            return Token(str(text), float(ends))
        except ConfigurationError:
            raise
        except Exception as error:
            # It is not ours, so its errors are not known: an outage and a mistake look the same.
            raise BusUnavailable(f"bus.options.{PROVIDER} = {place!r} gave no token: {error}") from error

    return Tokens(fetch)


def take_endpoint(options: dict[str, Any]) -> Tokens | None:
    """Take the token endpoint's options out of the options. Tokens come from the grant
    ``client_credentials``."""
    given = {name: options.pop(name) for name in ENDPOINT_OPTIONS if name in options}
    if not given:
        return None
    for name, value in given.items():
        if not isinstance(value, str):
            raise ConfigurationError(
                f"bus.options.{name} is not text: put it in double quotes, also in the environment"
            )
    for name in (ENDPOINT, IDENTIFIER, SECRET):
        if name not in given:
            raise ConfigurationError(
                f"bus.options.{name} is missing: {ENDPOINT}, {IDENTIFIER} and {SECRET} belong together"
            )
    url = given[ENDPOINT]
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ConfigurationError(f"bus.options.{ENDPOINT}: an address that begins with https:// is expected")
    form = {"grant_type": "client_credentials"} | ({"scope": given[SCOPE]} if given.get(SCOPE) else {})
    headers = {
        "Accept": "application/json",
        "Authorization": basic(given[IDENTIFIER], given[SECRET]),
        "Content-Type": "application/x-www-form-urlencoded",
    }

    def fetch() -> Token:
        now = time.time()
        try:
            context = (
                ssl.create_default_context(cafile=given.get(AUTHORITY)) if url.startswith("https") else None
            )
        except OSError as error:
            raise ConfigurationError(f"bus.options.{AUTHORITY} cannot be used: {error}") from None
        try:
            said = ask(url, urllib.parse.urlencode(form).encode(), headers, ANSWER_SECONDS, context)
            text, lasting = said["access_token"], said.get("expires_in", LASTING_SECONDS)
            return Token(str(text), now + float(lasting))
        except urllib.error.HTTPError as error:
            told = f"the token endpoint {url} answers {error.code} {_said(error)}"
            if 400 <= error.code < 500 and error.code not in (408, 429):
                raise ConfigurationError(f"bus.options: no token: {told}") from None
            raise BusUnavailable(f"no token: {told}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            cause = getattr(error, "reason", None) or error
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise ConfigurationError(
                    f"bus.options.{AUTHORITY}: the token endpoint {url} is not trusted: {cause}"
                ) from None
            raise BusUnavailable(f"no token: the token endpoint {url} gives none: {cause}") from None

    pairs = [one.partition("=") for one in given.get(EXTENSIONS, "").split(",") if one.strip()]
    if not all(name.strip() and value for name, _, value in pairs):
        raise ConfigurationError(f"bus.options.{EXTENSIONS}: name=value,name=value is expected")
    return Tokens(fetch, {name.strip(): value.strip() for name, _, value in pairs})


def _said(error: urllib.error.HTTPError) -> str:
    """The answer's error code, as in RFC 6749, and nothing else: the answer may repeat what was sent."""
    try:
        return str(json.loads(error.read(10_000))["error"])[:100]
    except (OSError, ValueError, KeyError, TypeError):
        return str(error.reason)[:100]
    finally:
        error.close()
