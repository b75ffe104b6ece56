"""Seals on records, and signatures on statements, of one member of a federation.

A seal is a keyed BLAKE2b under a key that only sender and receiver can make (X25519, HKDF). It covers the
federation, sender and receiver, topic, partition, key and value of the record. Nobody else can make a seal,
and a record that is moved or changed does not fit its seal. A seal does not show that a record comes twice
where it belongs: the numbers within the messages do.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple
from weakref import WeakSet

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.channels import Seal
from streamfl.contract.role import BadRecord, ConfigurationError, Headers, Record
from streamfl.encoding.wire import encoded_size
from streamfl.identity.keys import (
    IDENTIFIER_BYTES,
    SIGNATURE_BYTES,
    PrivateKey,
    PublicKey,
    derive,
    read_key_file,
)
from streamfl.identity.members import Member, MemberKey, Members, read_members

__all__ = ["SEAL_BYTES", "Identity", "load_identity", "renew_identities"]

SEAL = "seal"
# A seal's first byte says how it is made. The identifiers of the sender's and the receiver's key come next.
FOR_A_PEER = b"\x01"
CODE_BYTES = 16
SEAL_BYTES = encoded_size(None, None, ((SEAL, bytes(1 + 2 * IDENTIFIER_BYTES + CODE_BYTES)),)) - encoded_size(
    None, None
)
"""What a seal adds to a record, in bytes as :func:`~streamfl.encoding.wire.encoded_size` counts them."""


class _Source(NamedTuple):
    """Where an identity is read from."""

    key_file: str
    members_file: str
    federation: str
    kind: str


class _Standing:
    """The content of the files when they were read.

    keys: the member's own, newest first. ConfigurationError if the members' file has none of them, or does
    not let the member be a worker of the role ``kind``.
    """

    def __init__(self, keys: Collection[PrivateKey], members: Members, kind: str) -> None:
        self.made_of = [key.public.identifier for key in keys], members
        self.known = {found.key.identifier: found for found in members.every_key()}
        self._federation = members.federation
        self._pairs: dict[tuple[bytes, bytes], bytes] = {}
        listed = [self.known[key.public.identifier] for key in keys if key.public.identifier in self.known]
        if not listed:
            newest = next(iter(keys)).public.text
            raise ConfigurationError(
                f"this member's public key is not in the members' file: {newest}: have it added with "
                "streamfl members add"
            )
        if len({found.member.name for found in listed}) > 1:
            raise ConfigurationError("the key file has keys of two members: give each member its own file")
        valid = [found.key.identifier for found in listed if not found.revoked]
        if not valid:
            raise ConfigurationError(
                f"the key of {listed[0].member.name!r} is revoked in the members' file: have a new one added"
            )
        # A new key opens seals before this member's copy of the members' file has it: the others may have a
        # newer copy.
        revoked = {found.key.identifier for found in listed if found.revoked}
        self.own = {key.public.identifier: key for key in keys if key.public.identifier not in revoked}
        # The newest key that the others can know.
        self.key = self.own[valid[0]]
        self.member: Member = listed[0].member
        if kind not in self.member.roles:
            raise ConfigurationError(
                f"role.kind = {kind!r}: {self.member.name!r} may be "
                f"{', '.join(self.member.roles) or 'nothing'}, according to the members' file: run a role "
                "that it may be, or change the file"
            )

    def peer(self, kind: str, name: str | None) -> PublicKey:
        """The newest key of the one member that may be ``kind``, and speaks for ``name`` if given."""
        found: dict[str, MemberKey] = {}
        for one in self.known.values():
            member = one.member
            if (
                not one.revoked
                and kind in member.roles
                and (name is None or member.speaks_in_the_name_of(name))
            ):
                found.setdefault(member.name, one)
        if len(found) != 1:
            wanted = f"{kind} for {name!r}" if name else kind
            raise ConfigurationError(
                f"the members' file has {len(found)} members that may be {wanted} and have a key"
                f"{_listed(found)}; exactly one is needed: its workers share one key file"
            )
        return next(iter(found.values())).key

    def pair(self, own: PrivateKey, other: PublicKey, outgoing: bool) -> bytes:
        """The key for seals from one member to the other. The other direction has another key."""
        sender, receiver = (own.public, other) if outgoing else (other, own.public)
        ends = sender.identifier, receiver.identifier
        if ends not in self._pairs:
            parts = (
                self._federation.encode(),
                *(half for end in (sender, receiver) for half in (end.signing, end.agreement)),
            )
            self._pairs[ends] = derive(
                own.agree(other), b"seal" + b"".join(struct.pack(">I", len(part)) + part for part in parts)
            )
        return self._pairs[ends]


class Identity:
    """A member with its own keys. The files may change while it works: each message is checked against what
    was read last.

    keys: the member's own, newest first. ConfigurationError if the members' file has none of them, or does
    not let the member be a worker of the role ``kind``.
    """

    def __init__(self, keys: Collection[PrivateKey], members: Members, kind: str) -> None:
        self.federation = members.federation
        self.source: _Source | None = None
        self._kind = kind
        # Checks that have to pass whenever the files change.
        self._needed: list[Callable[[_Standing], object]] = []
        # Replaced as a whole: another thread may be reading it.
        self._now = _Standing(keys, members, kind)

    @property
    def member(self) -> Member:
        """This member."""
        return self._now.member

    def renewed(self, keys: Collection[PrivateKey], members: Members) -> _Standing | None:
        """The new content for :meth:`take`, if the files have changed; None if they have not.

        ConfigurationError if this member could not have started with these files.
        """
        if self._now.made_of == ([key.public.identifier for key in keys], members):
            return None
        standing = _Standing(keys, members, self._kind)
        for needed in self._needed:
            needed(standing)
        return standing

    def take(self, standing: _Standing) -> None:
        """Use ``standing`` from now on."""
        self._now = standing

    def need(self, check: Callable[[Member], object]) -> None:
        """Run ``check`` now and after each change. It raises ConfigurationError if the member may not do what
        its worker does."""
        self._require(lambda standing: check(standing.member))

    def _require(self, needed: Callable[[_Standing], object]) -> None:
        needed(self._now)
        self._needed.append(needed)

    # ---- messages between peers

    def seal(self, topic: str, kind: str, name: str | None = None) -> Seal:
        """Makes the header of each record that goes to the member that may be ``kind``, and speaks for the
        party ``name`` if given.

        ConfigurationError unless the members' file has exactly one such member with a key.
        """
        self._require(lambda standing: standing.peer(kind, name))
        made = self._sealing(topic, kind, name)

        def make(key: bytes | None, value: bytes | None, partition: int | None) -> Headers:
            if partition is None:
                raise ValueError(f"a message for {topic} has to be sealed but names no partition")
            nonlocal made
            if made.standing is not self._now:
                made = self._sealing(topic, kind, name)
            return ((SEAL, made.prefix + made.code(key, value, partition)),)

        return make

    def open(self, topic: str, kind: str) -> Callable[[Record], Member]:
        """Returns which member sealed a record for this member, as the role ``kind``. It raises BadRecord if
        none did."""
        now = self._now
        codes: dict[bytes, Callable[..., bytes]] = {}

        def check(record: Record) -> Member:
            nonlocal now
            if now is not self._now:
                now = self._now
                codes.clear()
            names, content = _seal_of(record)
            found = now.known.get(names[:IDENTIFIER_BYTES])
            if found is None:
                raise BadRecord(
                    "not_a_member",
                    f"sealed with the key {names[:IDENTIFIER_BYTES].hex()}, which no member has",
                )
            if names not in codes:
                own = now.own.get(names[IDENTIFIER_BYTES:])
                if own is None:
                    raise BadRecord(
                        "forged",
                        f"sealed by {found.member.name!r} for a key that {now.member.name!r} does not have",
                    )
                codes[names] = _code(now.pair(own, found.key, outgoing=False), topic)
            if not hmac.compare_digest(content, codes[names](record.key, record.value, record.partition)):
                raise BadRecord(
                    "forged",
                    f"its seal is not of {found.member.name!r}, or of another federation, topic, partition, "
                    "key or content",
                )
            _check_standing(found, kind, "sealed")
            return found.member

        return check

    # ---- statements that everybody can check

    def sign(self, statement: bytes) -> bytes:
        """This member's signature of a statement, after the identifier of the key."""
        key = self._now.key
        return key.public.identifier + key.sign(statement)

    def check_signature(self, kind: str, statement: bytes, signature: bytes) -> None:
        """BadRecord unless a member that may be ``kind`` signed the statement with a key that is not
        revoked."""
        self.signer_of(kind, statement, signature)

    def signer_of(self, kind: str, statement: bytes, signature: bytes) -> Member:
        """The member that signed the statement, as for :meth:`check_signature`."""
        identifier, content = signature[:IDENTIFIER_BYTES], signature[IDENTIFIER_BYTES:]
        found = self._now.known.get(identifier)
        if found is None:
            raise BadRecord("not_a_member", f"signed with the key {identifier.hex()}, which no member has")
        if len(content) != SIGNATURE_BYTES or not found.key.verifies(content, statement):
            raise BadRecord("forged", f"its signature is not of {found.member.name!r}, or of other content")
        _check_standing(found, kind, "signed")
        return found.member

    def _sealing(self, topic: str, kind: str, name: str | None) -> _Sealing:
        now = self._now
        receiver = now.peer(kind, name)
        prefix = FOR_A_PEER + now.key.public.identifier + receiver.identifier
        return _Sealing(now, prefix, _code(now.pair(now.key, receiver, outgoing=True), topic))


class _Sealing(NamedTuple):
    """Seals records of a topic until the files change."""

    standing: _Standing
    prefix: bytes
    code: Callable[[bytes | None, bytes | None, int], bytes]


# The identities of this process, each with the files that it was read from.
_loaded: WeakSet[Identity] = WeakSet()


def load_identity(settings: RoleSettings) -> Identity | None:
    """The member that these settings describe; None where members have no keys. ConfigurationError says what
    does not fit."""
    source = _source(settings)
    if source is None:
        return None
    keys, members = _read(source)
    try:
        identity = Identity(keys, members, source.kind)
    except ConfigurationError as error:
        raise ConfigurationError(f"federation.members: {error}") from None
    identity.source = source
    _loaded.add(identity)
    return identity


def renew_identities(settings: RoleSettings) -> bool:
    """Read the files again, and update all identities loaded from these settings. False if nothing has
    changed.

    ConfigurationError if the files cannot be used; all identities then stay as they were.
    """
    source = _source(settings)
    found = [one for one in _loaded if one.source == source]
    if source is None or not found:
        return False
    keys, members = _read(source)
    try:
        changed = [(one, standing) for one in found if (standing := one.renewed(keys, members)) is not None]
    except ConfigurationError as error:
        raise ConfigurationError(f"federation.members: {error}") from None
    for one, standing in changed:
        one.take(standing)
    return bool(changed)


def _source(settings: RoleSettings) -> _Source | None:
    key_file, members_file = settings.identity.key_file, settings.federation.members
    if key_file is None or members_file is None:
        return None
    return _Source(key_file, members_file, settings.federation.name, settings.role.kind)


def _read(source: _Source) -> tuple[tuple[PrivateKey, ...], Members]:
    try:
        keys = read_key_file(Path(source.key_file))
    except ConfigurationError as error:
        raise ConfigurationError(f"identity.key_file: {error}") from None
    try:
        members = read_members(Path(source.members_file))
        if members.federation != source.federation:
            raise ConfigurationError(
                f"{source.members_file}: has the members of {members.federation!r}, federation.name is "
                f"{source.federation!r}"
            )
    except ConfigurationError as error:
        raise ConfigurationError(f"federation.members: {error}") from None
    return keys, members


def _code(secret: bytes, topic: str) -> Callable[[bytes | None, bytes | None, int], bytes]:
    """A function that makes the code of a record of this topic from key, value and partition."""
    name = topic.encode()
    head = struct.pack(">I", len(name)) + name

    def make(key: bytes | None, value: bytes | None, partition: int) -> bytes:
        # 0: nothing else is said.
        lengths = struct.pack(
            ">IBqq", partition, 0, -1 if key is None else len(key), -1 if value is None else len(value)
        )
        content = b"".join((head, lengths, key or b"", value or b""))
        return hashlib.blake2b(content, key=secret, digest_size=CODE_BYTES, person=b"streamfl seal").digest()

    return make


def _seal_of(record: Record) -> tuple[bytes, bytes]:
    """The identifiers of the sender's and the receiver's key in a record's seal, and its code."""
    seals = [content for name, content in record.headers if name == SEAL]
    if not seals:
        raise BadRecord("unsigned", "without a seal: its sender has no [identity]")
    if len(seals) > 1 or seals[0][:1] != FOR_A_PEER or len(seals[0]) != 1 + 2 * IDENTIFIER_BYTES + CODE_BYTES:
        raise BadRecord("forged", "this release does not know its kind of seal")
    return seals[0][1:-CODE_BYTES], seals[0][-CODE_BYTES:]


def _check_standing(found: MemberKey, kind: str, how: str) -> None:
    """BadRecord unless the member may seal or sign with this key, as the role ``kind``."""
    if found.revoked:
        raise BadRecord("revoked", f"{how} with a key of {found.member.name!r} that is revoked")
    if kind not in found.member.roles:
        raise BadRecord("not_a_member", f"{found.member.name!r} is no member that may be {kind}")


def _listed(found: Collection[str]) -> str:
    return f" ({', '.join(found)})" if found else ""
