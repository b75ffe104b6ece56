"""The HTTP interface of Confluent's schema registry, which others follow: schemas by number, and by subject.

A request has a bound in time and in bytes, and never more than one is made of a decoder. The schema of a
number is kept, because it never changes. If a registry does not answer, the record is read again later, and
nothing is lost. Other records go on meanwhile: from the second request on it is asked by a thread.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from streamfl.contract.role import BadRecord, ConfigurationError, NotYetReadable
from streamfl.records.topic import RegistrySection
from streamfl_connectors.web import ask, basic

__all__ = ["Registry", "Schema"]

MOST_SCHEMAS = 1_000
MOST_REFERENCES = 100
# How long the worker's loop waits for a registry that did not answer last.
PROMPT_SECONDS = 0.3
# After a failure the registry is not asked for this long.
PAUSE_SECONDS = 1.0
# A node of a registry may get a new schema a moment after the schema's first record.
UNKNOWN_SECONDS = 5.0
# After an unknown number, no other one is waited for during this time: a peer may write made-up numbers.
CALM_SECONDS = 60.0
CONTENT = "application/vnd.schemaregistry.v1+json"


Answer = TypeVar("Answer")


class Schema(NamedTuple):
    """A schema as it is registered. kind: AVRO, JSON or PROTOBUF. references: name and text of those that it
    needs, in order."""

    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


class _Answered(Exception):
    """The registry answered with a refusal."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status = status


class Registry:
    """Asks one registry.

    section: its address and login.
    serialized: ask for Protobuf's schemas as descriptors, if the registry can give them.
    clock: seconds that never run backwards. ConfigurationError if a file that the section names cannot be
    read.
    """

    def __init__(
        self, section: RegistrySection, serialized: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._section = section
        self._base = section.url.rstrip("/")
        self._suffix = "?format=serialized" if serialized else ""
        self._clock = clock
        self._schemas: dict[int, Schema] = {}
        self._paused_until = float("-inf")
        self._trouble = ""
        self._missing: dict[int, float] = {}
        self._calm_until = float("-inf")
        self._token, self._token_until = "", float("-inf")
        # What was asked last, and its answer or failure.
        self._asked: Hashable = None
        self._answer: Future[Any] = Future()
        for key in ("password_file", "token_file", "oauth_client_secret_file"):
            if (path := getattr(section, key)) is not None:
                _secret(path, key)
        _context(section)

    def schema(self, number: int) -> Schema:
        """The schema of this number.

        NotYetReadable while the registry does not answer, or may not have the schema yet. BadRecord with
        reason unknown_schema if it does not have the schema.
        """
        known = self._schemas.get(number)
        return self._answered(number, partial(self._schema, number)) if known is None else known

    def _schema(self, number: int) -> Schema:
        try:
            found = self._resolved(self._get(f"/schemas/ids/{number}{self._suffix}"))
        except _Answered as answer:
            raise self._unknown(number, answer) from None
        self._missing.pop(number, None)
        if len(self._schemas) >= MOST_SCHEMAS:
            del self._schemas[next(iter(self._schemas))]
        self._schemas[number] = found
        return found

    def latest(self, subject: str) -> tuple[int, Schema]:
        """The newest schema of a subject, and its number. ConfigurationError if there is none; NotYetReadable
        as :meth:`schema`."""
        return self._answered(("latest", subject), partial(self._latest, subject))

    def _latest(self, subject: str) -> tuple[int, Schema]:
        try:
            content = self._get(
                f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest{self._suffix}"
            )
            return int(content["id"]), self._resolved(content)
        except _Answered as answer:
            raise ConfigurationError(
                f"{self._base}: the subject {subject!r} has no schema ({answer})"
            ) from None

    def register(self, subject: str, schema: Schema) -> int:
        """Register a schema under a subject, if it is new. Returns its number. ConfigurationError if the
        registry refuses it."""
        return self._answered(("register", subject), partial(self._register, subject, schema))

    def _register(self, subject: str, schema: Schema) -> int:
        try:
            body = {"schema": schema.text, "schemaType": schema.kind}
            return int(self._get(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions", body)["id"])
        except _Answered as answer:
            raise ConfigurationError(f"{self._base}: a schema for {subject!r} is refused: {answer}") from None

    def _answered(self, what: Hashable, ask: Callable[[], Answer]) -> Answer:
        """The answer. A registry that gave none last is asked by a thread: NotYetReadable if it takes longer
        than a moment, and who asks for the same later gets the answer then.

        what: names what is asked for.
        """
        if self._asked != what and self._answer.done():
            # Nobody asks for that any more, or its schema is known by now.
            self._asked = None
        is_paused = self._clock() < self._paused_until
        if self._asked is None and (is_paused or not self._trouble):
            return ask()
        waits = NotYetReadable(
            self._trouble or f"the schema registry at {self._base} is being asked for another schema",
            partial(self._answered, what, ask),
        )
        if self._asked is None:
            self._asked, self._answer = what, Future()
            threading.Thread(target=_settle, args=(self._answer, ask), daemon=True).start()
            with suppress(TimeoutError):
                self._answer.exception(PROMPT_SECONDS)
        elif self._asked != what:
            raise waits
        if not self._answer.done():
            raise waits
        self._asked = None
        answer: Answer = self._answer.result()
        return answer

    def _resolved(self, content: Mapping[str, Any]) -> Schema:
        references: dict[str, str] = {}
        self._resolve(content, references)
        return Schema(
            str(content.get("schemaType") or "AVRO"), str(content["schema"]), tuple(references.items())
        )

    def _resolve(self, content: Mapping[str, Any], found: dict[str, str]) -> None:
        for one in content.get("references") or []:
            name = str(one["name"])
            if name in found:
                continue
            if len(found) >= MOST_REFERENCES:
                raise BadRecord("malformed", f"the schema names more than {MOST_REFERENCES} others")
            # Against a cycle of references.
            found[name] = ""
            subject = urllib.parse.quote(str(one["subject"]), safe="")
            path = f"/subjects/{subject}/versions/{int(one['version'])}{self._suffix}"
            inner = self._get(path)
            self._resolve(inner, found)
            # Moved after the schemas that it names.
            del found[name]
            found[name] = str(inner["schema"])

    def _unknown(self, number: int, answer: _Answered) -> Exception:
        now = self._clock()
        if len(self._missing) >= MOST_SCHEMAS:
            del self._missing[next(iter(self._missing))]
        since = self._missing.setdefault(number, now)
        if now - since < UNKNOWN_SECONDS and now >= self._calm_until:
            return NotYetReadable(
                f"the schema registry at {self._base} does not know the schema {number} yet ({answer})"
            )
        if now >= self._calm_until:
            self._calm_until = now + CALM_SECONDS
        return BadRecord(
            "unknown_schema",
            f"the schema registry at {self._base} does not know the schema {number} ({answer})",
        )

    def _get(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The registry's answer; _Answered if it refuses with 404, 409 or 422, NotYetReadable if it cannot be
        asked."""
        again = partial(self._answers, path, body)
        if self._clock() < self._paused_until:
            raise NotYetReadable(self._trouble, again)
        try:
            login = self._credentials()
        except (ConfigurationError, OSError, ValueError) as error:
            raise self._pause(f"the login failed: {error}", again) from None
        try:
            content = self._ask(self._base + path, None if body is None else json.dumps(body).encode(), login)
            if not isinstance(content, dict) or ("schema" not in content and "id" not in content):
                raise ValueError("an object with a schema is expected")
            self._trouble = ""
            return content
        except urllib.error.HTTPError as error:
            text = _said(error)
            if error.code in (404, 409, 422):
                self._trouble = ""
                raise _Answered(error.code, text) from None
            if error.code in (401, 403):
                self._token_until = float("-inf")
                text += "; see the user, password_file, token_file or oauth_… of [registry]"
            cause = f"{error.code} {text}"
        except (OSError, ValueError, ConfigurationError) as error:
            cause = str(getattr(error, "reason", None) or error) or type(error).__name__
        raise self._pause(cause, again)

    def _answers(self, path: str, body: Mapping[str, Any] | None) -> None:
        """Ask once more; a refusal is an answer, too. NotYetReadable if it cannot be asked."""
        with suppress(_Answered):
            self._get(path, body)

    def _pause(self, cause: str, again: Callable[[], object]) -> NotYetReadable:
        self._trouble = (
            f"the schema registry at {self._base} cannot be asked: {cause}. Records stay in their topic "
            "meanwhile"
        )
        self._paused_until = self._clock() + PAUSE_SECONDS
        return NotYetReadable(self._trouble, again)

    def _credentials(self) -> str | None:
        section = self._section
        if section.user is not None and section.password_file is not None:
            return basic(section.user, _secret(section.password_file, "password_file"))
        if section.token_file is not None:
            return f"Bearer {_secret(section.token_file, 'token_file')}"
        if (
            section.oauth_token_url is None
            or section.oauth_client_id is None
            or section.oauth_client_secret_file is None
        ):
            return None
        if self._clock() >= self._token_until:
            form = {"grant_type": "client_credentials"} | (
                {"scope": section.oauth_scope} if section.oauth_scope else {}
            )
            secret = _secret(section.oauth_client_secret_file, "oauth_client_secret_file")
            login = basic(section.oauth_client_id, secret)
            said = self._ask(section.oauth_token_url, urllib.parse.urlencode(form).encode(), login, form=True)
            if not isinstance(said, dict) or not isinstance(said.get("access_token"), str):
                raise ValueError(f"{section.oauth_token_url} gave no access_token")
            lasting = said.get("expires_in")
            # Renewed before it expires, so that no token is refused.
            self._token_until = self._clock() + 0.8 * (lasting if isinstance(lasting, (int, float)) else 60.0)
            self._token = said["access_token"]
        return f"Bearer {self._token}"

    def _ask(self, url: str, body: bytes | None, login: str | None, form: bool = False) -> Any:
        kind = "application/x-www-form-urlencoded" if form else CONTENT
        headers = {
            "Accept": f"{CONTENT}, application/json",
            **({} if body is None else {"Content-Type": kind}),
        }
        if not form:
            headers |= self._section.headers
        if login is not None:
            headers["Authorization"] = login
        # Certificates are read anew with each request: they last for weeks, and workers for longer.
        context = _context(self._section) if url.startswith("https") else None
        return ask(url, body, headers, self._section.timeout_seconds, context, self._clock)


def _settle(answer: Future[Any], ask: Callable[[], object]) -> None:
    try:
        answer.set_result(ask())
    except Exception as error:
        answer.set_exception(error)


def _said(error: urllib.error.HTTPError) -> str:
    try:
        content = json.loads(error.read(10_000))
        return str(content["message"])[:200]
    except (OSError, ValueError, KeyError, TypeError):
        return str(error.reason)[:200]
    finally:
        error.close()


def _secret(path: str, key: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"registry.{key} = {path!r} cannot be read: {error}") from None


def _no_passphrase() -> str:
    # Without this function the library would ask for a passphrase at the terminal, and wait.
    raise ValueError("the key is encrypted, and one without a passphrase is expected")


def _context(section: RegistrySection) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=section.ca_file)
        if section.certificate_file is not None:
            context.load_cert_chain(section.certificate_file, section.key_file, _no_passphrase)
        return context
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigurationError(
            f"[registry] ca_file, certificate_file or key_file cannot be used: {error}"
        ) from None
