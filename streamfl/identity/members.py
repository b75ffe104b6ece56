"""The members' file: who takes part in a federation, with which public keys, and for whom each may speak.

It is public, and the same at every member. Nothing in it is secret. Anyone who may change it decides who
takes part.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from streamfl.contract.role import ConfigurationError
from streamfl.identity.keys import PublicKey

__all__ = ["Member", "MemberKey", "Members", "read_members", "write_members"]

HEAD = """\
# The members of a federation: written by `streamfl members`, which keeps no comments but these. \
Every member has the same file.
# Public keys are newest first. Who may change this file decides who takes part.
"""
NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
Value = TypeVar("Value", str, bytes)


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A member: it runs workers with one key file.

    roles: kinds of role that it may be.
    speaks_for: clients or parties that it may speak for: exact names, and prefixes that end with ``*``.
    public_keys, revoked_keys: as :attr:`~streamfl.identity.keys.PublicKey.text`, newest first.
    """

    name: str
    roles: tuple[str, ...]
    public_keys: tuple[str, ...]
    speaks_for: tuple[str, ...] = ()
    revoked_keys: tuple[str, ...] = ()
    revoked: bool = False

    def speaks_in_the_name_of(self, name: str) -> bool:
        """Whether it may speak for this client or party.

        >>> site = Member("site-a", ("pofmkl-client",), (), ("press-*", "mill"))
        >>> [site.speaks_in_the_name_of(name) for name in ("press-4", "mill", "mill-2")]
        [True, True, False]
        """
        return any(
            name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
            for pattern in self.speaks_for
        )


class MemberKey(NamedTuple):
    """A key of the members' file, and its member. revoked: records under this key are refused."""

    member: Member
    key: PublicKey
    revoked: bool


class Members(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The members' file of one federation."""

    federation: str
    members: tuple[Member, ...] = ()

    def every_key(self) -> Iterator[MemberKey]:
        """Every key of every member, revoked ones too."""
        for member in self.members:
            for text in member.public_keys:
                yield MemberKey(member, PublicKey.parse(text), member.revoked)
            for text in member.revoked_keys:
                yield MemberKey(member, PublicKey.parse(text), True)

    def named(self, name: str) -> Member | None:
        """The member of this name."""
        return next((member for member in self.members if member.name == name), None)

    def replaced(self, member: Member) -> Members:
        """A copy with this member added, or in place of the member of the same name."""
        if self.named(member.name) is None:
            return Members(self.federation, (*self.members, member))
        return Members(
            self.federation, tuple(member if one.name == member.name else one for one in self.members)
        )


def read_members(path: Path) -> Members:
    """The members' file; ConfigurationError says what is wrong with it."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: is not a members' file: it is not TOML: {error}") from None
    try:
        return _checked(content)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _checked(content: object) -> Members:
    """ConfigurationError if a field is missing, unknown or wrong, or if a name or a key comes twice."""
    try:
        members = msgspec.convert(content, Members)
    except msgspec.ValidationError as error:
        raise ConfigurationError(str(error)) from None
    for member in members.members:
        if not NAME.fullmatch(member.name):
            raise ConfigurationError(
                f"{member.name!r} is no member's name: letters, digits, '.', '_' and '-' are expected"
            )
        for pattern in member.speaks_for:
            if not pattern or "*" in pattern[:-1]:
                raise ConfigurationError(
                    f"{member.name!r} speaks for {pattern!r}: a name is expected, or the beginning of names "
                    "with one * at its end"
                )
    names = [member.name for member in members.members]
    if len(set(names)) < len(names):
        raise ConfigurationError(
            f"the member {_twice(names)!r} comes twice: give each member a name of its own"
        )
    found = list(members.every_key())
    keys = [one.key.identifier for one in found]
    if len(set(keys)) < len(keys):
        owner = found[keys.index(_twice(keys))].member.name
        raise ConfigurationError(
            f"a public key of {owner!r} comes twice: every member needs a key of its own"
        )
    return members


def write_members(path: Path, members: Members) -> None:
    """Write the file whole or not at all; ConfigurationError if it cannot be written, or could not be read
    again."""
    _checked(msgspec.to_builtins(members))
    lines = [HEAD, f"federation = {_text(members.federation)}"]
    for member in members.members:
        lines += ["", "[[members]]", f"name = {_text(member.name)}"]
        for key in ("roles", "speaks_for", "public_keys", "revoked_keys"):
            values = getattr(member, key)
            if values or key in ("roles", "public_keys"):
                lines.append(f"{key} = [{', '.join(map(_text, values))}]")
        if member.revoked:
            lines.append("revoked = true")
    text = "\n".join(lines) + "\n"
    beside = path.with_name(path.name + ".new")
    try:
        tomllib.loads(text)
        content = text.encode()
    except ValueError as error:
        raise ConfigurationError(f"{path}: a name cannot be written into it: {error}") from None
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror or error}") from None


def _text(value: str) -> str:
    # JSON's strings are TOML's, except for this character, and for characters that JSON escapes as surrogate
    # pairs.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _twice(values: list[Value]) -> Value:
    return next(value for value in values if values.count(value) > 1)
