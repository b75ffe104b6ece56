"""URLs of buses, without credentials: a name or password in a URL would show up in logs, errors and process
lists."""

from __future__ import annotations

import re

__all__ = ["check_url", "scheme_of", "without_userinfo"]

SCHEME = re.compile(r"[a-z][a-z0-9+.-]*(?=://)")
HOST = re.compile(r"\s*(\[[0-9A-Fa-f:.]+\]|[\w.-]*)(:[0-9]+)?\s*")
USERINFO = re.compile(r"(?<=://)[^/\s'\"][^\s'\"]*@")


def check_url(url: str) -> str:
    """The URL unchanged. ValueError if it holds more than a place; the error does not show the URL.

    >>> check_url("kafka://one:9092,two:9092"), check_url("sqlite:///data/a@b.db")
    ('kafka://one:9092,two:9092', 'sqlite:///data/a@b.db')
    """
    place = url.partition("://")[2]
    hosts = place.partition("/")[0].split(",")
    if not place.startswith("/") and (
        any(mark in place for mark in "@?#") or not all(map(HOST.fullmatch, hosts))
    ):
        raise ValueError(
            "only an address is expected, such as kafka://host:port,host:port: a name or password does not "
            "belong there (it is not shown here). Set bus.options: sasl_plain_username and "
            "sasl_plain_password for kafka://, sasl.username and sasl.password for kafka+librdkafka://, the "
            "password by the environment variable STREAMFL_BUS__OPTIONS__<NAME>"
        )
    return url


def scheme_of(url: str) -> str:
    """The scheme before ``://``; empty if the text has none, because it may then be anything.

    >>> scheme_of("kafka://host:9092"), scheme_of("user:password@host")
    ('kafka', '')
    """
    found = SCHEME.match(url)
    return found[0] if found else ""


def without_userinfo(text: str) -> str:
    """The text with an ellipsis in place of credentials: all before an @ in a URL.

    >>> without_userinfo("topic = 'kafka://u:p@ss@host:9092'")
    "topic = 'kafka://…@host:9092'"
    """
    return USERINFO.sub("…@", text)
