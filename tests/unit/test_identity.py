"""Key files, the members' file, seals and signatures: only a key's owner can speak for it."""

from __future__ import annotations

import base64
import hashlib
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfl.contract.channels import Channels, DecodesRuns, Input, Receiver, Sender
from streamfl.contract.role import BadRecord, ConfigurationError, Headers, Record
from streamfl.encoding.wire import encoded_size
from streamfl.identity import (
    SEAL_BYTES,
    Identity,
    Member,
    Members,
    PrivateKey,
    PublicKey,
    make_key_file,
    read_key_file,
    read_members,
    sealed_channels,
    write_members,
)
from streamfl.roles.fragment_encoding import decoded_in_fragments, split

SITE, SERVER, STRANGER = PrivateKey(b"s" * 32), PrivateKey(b"v" * 32), PrivateKey(b"x" * 32)
NEW, LATER = PrivateKey(b"n" * 32), PrivateKey(b"l" * 32)
TOPIC = "plant.updates"


def members(
    site: tuple[PrivateKey, ...] = (SITE,),
    server: tuple[PrivateKey, ...] = (SERVER,),
    federation: str = "plant",
    revoked: bool = False,
    revoked_keys: tuple[PrivateKey, ...] = (),
) -> Members:
    texts = tuple(key.public.text for key in site)
    return Members(
        federation,
        (
            Member(
                "site",
                ("client",),
                texts,
                ("press-*",),
                tuple(key.public.text for key in revoked_keys),
                revoked,
            ),
            Member("server", ("server",), tuple(key.public.text for key in server)),
            Member("other", ("client",), (STRANGER.public.text,), ("mill",)),
        ),
    )


def site(known: Members | None = None, keys: tuple[PrivateKey, ...] = (SITE,)) -> Identity:
    return Identity(keys, known or members(), "client")


def server(known: Members | None = None, keys: tuple[PrivateKey, ...] = (SERVER,)) -> Identity:
    return Identity(keys, known or members(), "server")


def record(
    key: bytes | None, value: bytes | None, headers: Headers, partition: int = 3, topic: str = TOPIC
) -> Record:
    return Record(topic, partition, 7, key, value, headers)


def sealed(
    sender: Identity | None = None, key: bytes | None = b"press-1", value: bytes | None = b"steps"
) -> Record:
    return record(key, value, (sender or site()).seal(TOPIC, "server")(key, value, 3))


def refusal(received: Record, receiver: Identity | None = None, topic: str = TOPIC) -> str:
    with pytest.raises(BadRecord) as refused:
        (receiver or server()).open(topic, "client")(received)
    return refused.value.reason


# ---- key files


def test_a_key_file_is_its_owners_alone(tmp_path: Path) -> None:
    """Protects the key: the file has mode 0600 whatever the umask, is never overwritten, and is refused if
    others may read it."""
    path = tmp_path / "site.key"
    before = os.umask(0)
    try:
        key = make_key_file(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.public for one in read_key_file(path)] == [key.public]
    content = path.read_bytes()
    with pytest.raises(ConfigurationError, match="exists already"):
        make_key_file(path)
    assert path.read_bytes() == content
    for mode in (0o640, 0o604, 0o620, 0o601):
        path.chmod(mode)
        with pytest.raises(ConfigurationError, match="chmod 600"):
            read_key_file(path)
    path.chmod(0o400)
    assert len(read_key_file(path)) == 1


@pytest.mark.parametrize("damage", ["first line", "typed wrong", "no key", "another file"])
def test_a_damaged_key_file_is_refused_and_not_quoted(tmp_path: Path, damage: str) -> None:
    """Protects the secret from logs: whatever is wrong with the file, the error does not show its content."""
    path = tmp_path / "site.key"
    make_key_file(path)
    head, comment, secret = path.read_text().splitlines()
    mistyped = secret[:-9] + ("B" if secret[-9] == "A" else "A") + secret[-8:]
    lines = {
        "first line": ["something else", comment, secret],
        "typed wrong": [head, comment, mistyped],
        "no key": [head, comment],
        "another file": ["\udcff" * 100_000],
    }[damage]
    path.write_bytes("\n".join(lines).encode(errors="surrogateescape"))
    with pytest.raises(ConfigurationError) as refused:
        read_key_file(path)
    assert secret[30:50] not in str(refused.value)
    assert str(path) in str(refused.value)


def test_nothing_shows_a_private_key() -> None:
    """Protects the secret from a log line or a debugger: as text a key is its public half."""
    secret = base64.b64encode(b"s" * 32).decode()[:40]
    for text in (repr(SITE), str(SITE), repr([SITE]), SITE.public.text):
        assert secret not in text
        assert "private" not in text.lower().replace("privatekey", "")


@given(secret=st.binary(min_size=32, max_size=32), place=st.integers(0, 91), new=st.sampled_from("Aaz09+/Q"))
@settings(deadline=None)
def test_a_public_key_with_a_typing_error_is_refused(secret: bytes, place: int, new: str) -> None:
    """Protects users who copy keys by hand: a wrong key would lock a member out silently."""
    text = PrivateKey(secret).public.text
    assert PublicKey.parse(text).text == text
    head, body = text.split(":")
    changed = f"{head}:{body[:place]}{new}{body[place + 1 :]}"
    if base64.b64decode(changed.split(":")[1] + "==") != base64.b64decode(body):
        with pytest.raises(ConfigurationError):
            PublicKey.parse(changed)


def test_keys_that_agree_with_everybody_on_zero_are_refused() -> None:
    """Protects against a public key of small order, which would let anybody seal in its owner's name."""
    content = SITE.public.signing + bytes(32)
    checksum = hashlib.blake2b(content, digest_size=4, person=b"streamfl typing").digest()
    with pytest.raises(ConfigurationError, match="anybody could have made"):
        PublicKey.parse("streamfl-public-1:" + base64.b64encode(content + checksum).decode())


def test_a_private_key_given_for_a_public_one_is_refused_without_being_shown() -> None:
    """Protects users who paste the wrong line: the secret would end up in a public file or in a log."""
    with pytest.raises(ConfigurationError) as refused:
        PublicKey.parse(SITE.line())
    assert SITE.line()[20:40] not in str(refused.value)


# ---- the members' file


def test_the_members_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """Protects revocations and patterns from getting lost between two commands."""
    path = tmp_path / "members.toml"
    known = members(revoked=True, revoked_keys=(PrivateKey(b"o" * 32),))
    odd = ('quote " and \\ and \x7f and é*', "press-\U0001f600*", "tab\tx")
    known = known.replaced(Member("odd", ("client",), (), odd))
    write_members(path, known)
    assert read_members(path) == known


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("federation = 7", "federation"),
        ('federation = "p"\nmember = 1', "member"),
        ("not toml", "is not TOML"),
        (
            'federation = "p"\n[[members]]\nname = "a"\nroles = []\npublic_keys = ["streamfl-public-1:AAAA"]',
            "is no public key",
        ),
        ('federation = "p"\n[[members]]\nname = "a b"\nroles = []\npublic_keys = []', "'a b'"),
        (
            'federation = "p"\n[[members]]\nname = "a"\nroles = []\npublic_keys = []\nspeaks_for = ["a*b"]',
            "'a*b'",
        ),
        (
            'federation = "p"\n[[members]]\nname = "a"\nroles = []\npublic_keys = []\n'
            '[[members]]\nname = "a"\nroles = []\npublic_keys = []',
            "comes twice",
        ),
    ],
)
def test_a_wrong_members_file_is_refused_with_the_cause(tmp_path: Path, text: str, expected: str) -> None:
    """Protects the federation from a file that is read differently than meant."""
    path = tmp_path / "members.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        read_members(path)
    assert expected in str(refused.value)
    assert str(path) in str(refused.value)


def test_two_members_cannot_share_a_key(tmp_path: Path) -> None:
    """Protects the identity of a sender: a key of two members identifies neither."""
    with pytest.raises(ConfigurationError, match="comes twice"):
        write_members(tmp_path / "members.toml", members(site=(SERVER,)))


# ---- seals


def test_what_a_member_sealed_is_opened() -> None:
    """Protects honest members: their messages are accepted with any key and value, also missing ones."""
    for key, value in ((b"press-1", b"steps"), (None, b""), (b"", None)):
        assert server().open(TOPIC, "client")(sealed(key=key, value=value)).name == "site"


def test_a_seal_is_what_the_document_says() -> None:
    """Protects other implementations: the seal is computed by hand from the documentation."""

    def hkdf(secret: bytes, info: bytes) -> bytes:
        return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"streamfl/1 " + info).derive(secret)

    own = X25519PrivateKey.from_private_bytes(hkdf(b"s" * 32, b"agreement key"))
    shared = own.exchange(X25519PublicKey.from_public_bytes(SERVER.public.agreement))
    ends = b"".join(
        struct.pack(">I", len(part)) + part
        for part in (
            b"plant",
            SITE.public.signing,
            SITE.public.agreement,
            SERVER.public.signing,
            SERVER.public.agreement,
        )
    )
    names = b"".join(
        hashlib.blake2b(
            one.public.signing + one.public.agreement, digest_size=8, person=b"streamfl key"
        ).digest()
        for one in (SITE, SERVER)
    )
    covered = (
        struct.pack(">I", len(TOPIC))
        + TOPIC.encode()
        + struct.pack(">IBqq", 3, 0, 7, 5)
        + b"press-1"
        + b"steps"
    )
    code = hashlib.blake2b(
        covered, key=hkdf(shared, b"seal" + ends), digest_size=16, person=b"streamfl seal"
    ).digest()
    assert sealed().headers == (("seal", b"\x01" + names + code),)


def test_the_size_of_a_seal_is_what_budgets_count() -> None:
    """Protects byte budgets: the size reserved for a seal is its real size."""
    found = sealed()
    assert (
        encoded_size(found.key, found.value, found.headers) - encoded_size(found.key, found.value)
        == SEAL_BYTES
    )


@given(
    field=st.sampled_from(["topic", "partition", "key", "value", "seal"]),
    place=st.integers(0, 10**6),
    bit=st.integers(0, 7),
    key=st.binary(min_size=1, max_size=20),
    value=st.binary(min_size=1, max_size=200),
)
@settings(deadline=None)
def test_whatever_is_changed_is_refused(field: str, place: int, bit: int, key: bytes, value: bytes) -> None:
    """Protects every part of a message: a moved record, or one changed bit, is refused."""

    def flipped(content: bytes) -> bytes:
        at = place % len(content)
        return content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]

    one = sealed(key=key, value=value)
    changed = {
        "topic": lambda: msgspec.structs.replace(one, topic="plant.others"),
        "partition": lambda: msgspec.structs.replace(one, partition=3 + 1 + place),
        "key": lambda: msgspec.structs.replace(one, key=flipped(key)),
        "value": lambda: msgspec.structs.replace(one, value=flipped(value)),
        "seal": lambda: msgspec.structs.replace(one, headers=(("seal", flipped(one.headers[0][1])),)),
    }[field]()
    expected = {"not_a_member", "forged"} if field == "seal" else {"forged"}
    assert refusal(changed, topic=changed.topic) in expected


@given(first=st.binary(max_size=12), second=st.binary(max_size=12), cut=st.integers(0, 24))
@settings(deadline=None)
def test_bytes_do_not_move_between_key_and_value(first: bytes, second: bytes, cut: int) -> None:
    """Protects the borders: the same bytes cut elsewhere, or a missing key instead of an empty one, are
    another message."""
    joined = first + second
    key, value = joined[:cut], joined[cut:]
    one = sealed(key=first, value=second)
    moved = record(key, value, one.headers)
    if (key, value) != (first, second):
        assert refusal(moved) == "forged"
    if not first:
        assert refusal(msgspec.structs.replace(one, key=None)) == "forged"


def test_a_seal_of_another_federation_or_another_way_is_refused() -> None:
    """Protects against replay from a test federation with the same keys, and against a message sent back to
    its sender."""
    elsewhere = members(federation="plant-test")
    assert refusal(sealed(site(elsewhere))) == "forged"
    both = Members(
        "plant",
        (
            Member("site", ("client", "server"), (SITE.public.text,), ("*",)),
            Member("server", ("client",), (SERVER.public.text,), ("*",)),
        ),
    )
    back = record(
        b"press-1",
        b"steps",
        Identity((SERVER,), both, "client").seal(TOPIC, "server")(b"press-1", b"steps", 3),
    )
    code = back.headers[0][1][17:]
    turned = b"\x01" + SITE.public.identifier + SERVER.public.identifier + code
    assert (
        refusal(
            msgspec.structs.replace(back, headers=(("seal", turned),)), Identity((SERVER,), both, "client")
        )
        == "forged"
    )


def test_strangers_are_refused() -> None:
    """Protects against anybody who may write to the topic: no seal, a seal of an unknown key, two seals, or
    garbage."""
    plain = record(b"press-1", b"steps", ())
    assert refusal(plain) == "unsigned"
    unknown = Members(
        "plant", (*members().members[1:], Member("ghost", ("client",), (SITE.public.text,), ("*",)))
    )
    only_server = Members("plant", members().members[1:])
    assert refusal(sealed(site(unknown)), server(only_server)) == "not_a_member"
    one = sealed()
    assert refusal(msgspec.structs.replace(one, headers=one.headers * 2)) == "forged"
    for rubbish in (
        b"",
        b"\x01",
        b"\x02" + one.headers[0][1][1:],
        one.headers[0][1] + b"x",
        one.headers[0][1][:-1],
    ):
        assert refusal(msgspec.structs.replace(one, headers=(("seal", rubbish),))) == "forged"


def test_a_member_cannot_take_another_role() -> None:
    """Protects the server's role: a site's valid seal does not make it a server, nor a server a client."""
    known = Members("plant", (Member("site", ("client",), (SITE.public.text,), ("*",)), members().members[1]))
    with pytest.raises(BadRecord) as refused:
        server(known).open(TOPIC, "server")(sealed(site(known)))
    assert refused.value.reason == "not_a_member"
    with pytest.raises(ConfigurationError, match="may be client"):
        Identity((SITE,), known, "server")


def test_a_member_speaks_only_for_its_own_clients() -> None:
    """Protects one site's clients from another site's workers: the seal is valid, but the name is not
    theirs."""
    source = Input(TOPIC, lambda found: (found.value or b"").decode(), sender=Sender("client", str))
    decode = sealed_channels(Channels({"updates": source}, {}, {}), server()).inputs["updates"].decode
    assert decode(sealed(value=b"press-77")) == "press-77"
    with pytest.raises(BadRecord) as refused:
        decode(sealed(value=b"mill"))
    assert refused.value.reason == "not_its_client"


class Names:
    """A decoder that decodes names in a row."""

    def __call__(self, record: Record) -> str:
        return (record.value or b"").decode()

    def run(self, records: Sequence[Record]) -> list[str] | None:
        return [self(record) for record in records]


def test_users_records_in_a_row_stay_in_a_row_with_keys() -> None:
    """Protects the speed of members with keys, and others' clients: a record about one of theirs is not taken
    among others."""
    source = Input("samples", Names(), client=str)
    own = Identity((SITE,), members(), "client")
    decode = sealed_channels(Channels({"samples": source}, {}, {}), own).inputs["samples"].decode
    assert isinstance(decode, DecodesRuns)
    good, foreign = (
        [Record("samples", 0, offset, None, name.encode(), (), 0.0) for offset, name in enumerate(names)]
        for names in (["press-1", "press-77", "press-1"], ["press-1", "mill"])
    )
    assert decode.run(good) == [decode(record) for record in good] == ["press-1", "press-77", "press-1"]
    assert decode.run(foreign) is None
    with pytest.raises(BadRecord) as refused:
        decode(foreign[1])
    assert refused.value.reason == "not_its_client"
    one_by_one = Input("samples", lambda record: (record.value or b"").decode(), client=str)
    assert not isinstance(
        sealed_channels(Channels({"samples": one_by_one}, {}, {}), own).inputs["samples"].decode, DecodesRuns
    )


def test_parts_of_a_message_name_a_sender_that_their_writer_speaks_for() -> None:
    """Protects one site's clients when messages come in parts: each part contains its sender, and that name
    is checked."""
    source = Input(
        TOPIC,
        decoded_in_fragments(lambda found: found),
        sender=Sender("client", lambda message: message.party),
    )
    decode = sealed_channels(Channels({"updates": source}, {}, {}), server()).inputs["updates"].decode
    for name in ("press-77", "site"):
        assert decode(sealed(value=split(name, 1, 1, bytes(20), fragment_bytes=8)[0])).sender == name
    with pytest.raises(BadRecord) as refused:
        decode(sealed(value=split("mill", 1, 1, bytes(20), fragment_bytes=8)[0]))
    assert refused.value.reason == "not_its_client"


def test_the_seal_is_looked_at_before_the_message() -> None:
    """Protects decoders from strangers: a message without a valid seal is not even decoded."""

    def decode(found: Record) -> str:
        raise AssertionError("a stranger's bytes were decoded")

    channels = Channels({"updates": Input(TOPIC, decode, sender=Sender("client", str))}, {}, {})
    with pytest.raises(BadRecord):
        sealed_channels(channels, server()).inputs["updates"].decode(record(b"press-1", b"steps", ()))


# ---- revoking and rotating


def test_what_a_revoked_member_or_key_seals_is_refused() -> None:
    """Protects the federation from a stolen key once it is revoked, whether the whole member or one key."""
    one = sealed()
    assert refusal(one, server(members(revoked=True))) == "revoked"
    assert refusal(one, server(members(site=(PrivateKey(b"n" * 32),), revoked_keys=(SITE,)))) == "revoked"
    with pytest.raises(ConfigurationError, match="revoked"):
        site(members(revoked=True))


def test_a_key_that_nobody_knows_yet_is_not_used() -> None:
    """Protects a rotation: a member whose new key is not in its members' file yet keeps using the old one.
    Once it is there, a message goes from the newest key to the newest."""
    assert sealed(site(members(), (NEW, SITE))).headers == sealed().headers
    both = members(site=(NEW, SITE), server=(LATER, SERVER))
    newest = NEW.public.identifier + LATER.public.identifier
    one = sealed(site(both, (NEW, SITE)))
    assert one.headers[0][1][1:17] == newest
    assert server(both, (LATER, SERVER)).open(TOPIC, "client")(one).name == "site"


def test_a_stolen_and_revoked_key_of_the_receiver_opens_nothing() -> None:
    """Protects the server: with its old key an attacker could send messages to it in the name of every
    site."""
    new = PrivateKey(b"m" * 32)
    forged = sealed(site())
    after = Members(
        "plant",
        (
            members().members[0],
            Member("server", ("server",), (new.public.text,), revoked_keys=(SERVER.public.text,)),
        ),
    )
    assert refusal(forged, server(after, (new, SERVER))) == "forged"


def test_exactly_one_member_is_the_server() -> None:
    """Protects a client from sealing for nobody: no server or two servers in the file stop it at the
    start."""
    two = members().replaced(Member("second", ("server",), (PrivateKey(b"2" * 32).public.text,)))
    none = Members("plant", members().members[:1])
    for known, expected in ((two, "2 members"), (none, "0 members")):
        with pytest.raises(ConfigurationError, match=expected):
            site(known).seal(TOPIC, "server")


# ---- signatures


def test_a_signature_is_the_members_and_nobody_elses() -> None:
    """Protects the model: only a member that may be the server signs it; the signature is checked with the
    library itself."""
    signature = server().sign(b"version 7")
    site().check_signature("server", b"version 7", signature)
    Ed25519PublicKey.from_public_bytes(SERVER.public.signing).verify(signature[8:], b"version 7")
    with pytest.raises(InvalidSignature):
        Ed25519PublicKey.from_public_bytes(STRANGER.public.signing).verify(signature[8:], b"version 7")
    without = members().replaced(Member("server", ("server",), (SERVER.public.text,), revoked=True))
    for statement, content, known, expected in (
        (b"version 8", signature, members(), "forged"),
        (b"version 7", signature[:-1] + bytes([signature[-1] ^ 1]), members(), "forged"),
        (b"version 7", signature[:8], members(), "forged"),
        (b"version 7", b"", members(), "not_a_member"),
        (b"version 7", site().sign(b"version 7"), members(), "not_a_member"),
        (b"version 7", signature, without, "revoked"),
    ):
        with pytest.raises(BadRecord) as refused:
            site(known).check_signature("server", statement, content)
        assert refused.value.reason == expected


def test_a_signed_channel_has_many_readers_who_all_check_it() -> None:
    """Protects a model that comes back to several members: its writer may have any number of readers, and
    none of them takes it from anybody else."""
    topic = "plant.model"
    writer = Channels({}, {"model": topic}, {}, receivers={"model": Receiver("client")}, signed=["model"])
    seal = sealed_channels(writer, server()).seals["model"]
    source = Input(
        topic, lambda found: found.value, sender=Sender("server", lambda _message: None), signed_for_all=True
    )
    reader = sealed_channels(Channels({}, {}, {}, tables={"model": source}), site()).tables["model"]
    told = record(b"mean", b"7", seal(b"mean", b"7", None), topic=topic)
    assert reader.decode(told) == b"7"
    by_a_client = sealed_channels(writer, site()).seals["model"](b"mean", b"9", None)
    for other, expected in (
        (msgspec.structs.replace(told, value=b"8"), "forged"),
        (msgspec.structs.replace(told, headers=()), "unsigned"),
        (record(b"mean", b"9", by_a_client, topic=topic), "not_a_member"),
    ):
        with pytest.raises(BadRecord) as refused:
            reader.decode(other)
        assert refused.value.reason == expected


def renewed(identity: Identity, known: Members, keys: tuple[PrivateKey, ...]) -> None:
    standing = identity.renewed(keys, known)
    assert standing is not None
    identity.take(standing)


def test_keys_change_under_those_who_use_them() -> None:
    """Protects a rotation without a restart: sealing, opening and signing go on, each with the newest
    files."""
    sender, receiver = site(), server()
    seal, check = sender.seal(TOPIC, "server"), receiver.open(TOPIC, "client")
    first = record(b"press-1", b"steps", seal(b"press-1", b"steps", 3))
    assert check(first).name == "site"
    both = members(site=(NEW, SITE))
    renewed(receiver, both, (SERVER,))
    assert receiver.renewed((SERVER,), both) is None
    assert check(first).name == "site"
    renewed(sender, both, (NEW, SITE))
    second = record(b"press-1", b"steps", seal(b"press-1", b"steps", 3))
    assert second.headers != first.headers
    assert check(second).name == "site"
    signature = sender.sign(b"statement")
    assert signature.startswith(NEW.public.identifier)
    receiver.check_signature("client", b"statement", signature)
    renewed(receiver, members(site=(NEW,), revoked_keys=(SITE,)), (SERVER,))
    with pytest.raises(BadRecord) as refused:
        check(first)
    assert refused.value.reason == "revoked"
    assert check(second).name == "site"
    # The receiver's own key.
    renewed(receiver, members(site=(NEW,), server=(LATER, SERVER)), (LATER, SERVER))
    assert check(second).name == "site"


@pytest.mark.parametrize(
    "known",
    [
        members(revoked=True),
        members(site=(NEW,)),
        members(server=()),
        members().replaced(Member("site", (), (SITE.public.text,))),
    ],
    ids=["revoked", "not listed", "no receiver", "no role"],
)
def test_files_that_a_member_could_not_begin_with_change_nothing(known: Members) -> None:
    """Protects a running worker from a wrong file: it goes on with the earlier keys."""
    sender = site()
    seal = sender.seal(TOPIC, "server")
    before = seal(b"press-1", b"steps", 3)
    with pytest.raises(ConfigurationError):
        sender.renewed((SITE,), known)
    assert seal(b"press-1", b"steps", 3) == before
    channels = Channels({}, {}, {}, party="press-7")
    sealed_channels(channels, sender)
    with pytest.raises(ConfigurationError, match="may not speak"):
        sender.renewed(
            (SITE,), members().replaced(Member("site", ("client",), (SITE.public.text,), ("mill-*",)))
        )
