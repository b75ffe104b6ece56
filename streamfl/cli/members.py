"""``streamfl members``: makes members' keys, and keeps the file of a federation's members."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from streamfl.contract.role import ConfigurationError
from streamfl.identity import Member, Members, PublicKey, add_key, make_key_file, read_members, write_members
from streamfl.runtime.kinds import find_kind
from streamfl.terminal.console import FormatOption, OutputFormat, print_json, print_table, print_text, say

__all__ = ["members"]

members = typer.Typer(
    name="members",
    help="Keys of a federation's members: make one, and keep the file that says whose they are.",
    no_args_is_help=True,
)

MembersArgument = Annotated[
    Path, typer.Argument(metavar="MEMBERS", help="The members' file, which is public.")
]
NameOption = Annotated[str, typer.Option("--name", help="The member.")]


@members.command()
def init(
    key_file: Annotated[
        Path, typer.Argument(metavar="KEY_FILE", help="The new file, which nobody else may read.")
    ],
) -> None:
    """Make a member's key where its workers run, and print its public half. The file is not overwritten."""
    print_text(make_key_file(key_file).public.text)
    say(f"made {key_file}: it stays here; give the public key above to whoever keeps the members' file")


@members.command()
def rotate(
    key_file: Annotated[Path, typer.Argument(metavar="KEY_FILE", help="The member's key file.")],
) -> None:
    """Make a member's next key, at the head of its key file, and print its public half. The old key stays in
    use until the members' file has the new one."""
    print_text(add_key(key_file).public.text)
    say(
        f"{key_file} has a new key, which this member's workers read by themselves: have the public key "
        "above added with streamfl members add; when every other member has the new members' file give it to "
        "this one too, and then have the old key revoked"
    )


@members.command()
def add(
    file: MembersArgument,
    name: NameOption,
    public_key: Annotated[str, typer.Option(help="What `streamfl members init` or `rotate` printed.")],
    role: Annotated[
        list[str] | None,
        typer.Option(help="Of a new member: a kind of role that it may be; may be given several times."),
    ] = None,
    speaks_for: Annotated[
        list[str] | None,
        typer.Option(
            help="Of a new member: a client or party that it speaks for; with * at the end all that begin "
            "so. Several are possible."
        ),
    ] = None,
    federation: Annotated[
        str | None, typer.Option(help="federation.name; needed when the file is made.")
    ] = None,
) -> None:
    """Add a new member, or give a member a new key beside its old ones. The file is made if there is none."""
    for kind in role or ():
        find_kind(kind)
    known = _opened(file, federation)
    member, key = known.named(name), PublicKey.parse(public_key).text
    if member is None:
        if not role:
            raise ConfigurationError(f"{name!r} is new: say with --role what it may be")
        member = Member(name, tuple(role), (), tuple(speaks_for or ()))
    elif role or speaks_for:
        raise ConfigurationError(
            f"{file}: {name!r} is a member already: leave out --role and --speaks-for to give it a new key"
        )
    elif member.revoked:
        raise ConfigurationError(
            f"{file}: {name!r} is revoked: a new key would be too; add it under a new name"
        )
    write_members(file, known.replaced(replace(member, public_keys=(key, *member.public_keys))))
    if member.public_keys:
        say(
            f"added a key of {name}, beside its old ones: give {file} to all others; then to {name} "
            "itself, which uses the new key from then on; then revoke the old key"
        )
    else:
        say(f"added {name}: give {file} to every member; workers that run read it by themselves")


@members.command()
def revoke(
    file: MembersArgument,
    name: NameOption,
    public_key: Annotated[
        str | None, typer.Option(help="Only this key of it; left out: the member with all keys.")
    ] = None,
) -> None:
    """Refuse everything that comes under a member's key from now on."""
    known = read_members(file)
    member = _member(file, known, name)
    if public_key is None:
        changed = replace(member, revoked=True)
    else:
        key = PublicKey.parse(public_key).text
        if key not in member.public_keys:
            raise ConfigurationError(
                f"{file}: {name!r} has no such public key; it has {', '.join(member.public_keys) or 'none'}"
            )
        rest = tuple(one for one in member.public_keys if one != key)
        changed = replace(member, public_keys=rest, revoked_keys=(key, *member.revoked_keys))
    write_members(file, known.replaced(changed))
    what = name if public_key is None else f"a key of {name}"
    text = (
        "to those who receive its messages, then to every other member; their workers read it by themselves"
    )
    say(f"revoked {what}: give {file} first {text}")


@members.command("list")
def list_members(file: MembersArgument, format: FormatOption = OutputFormat.TABLE) -> None:
    """Show the members, their roles, for whom they speak, and their keys."""
    known = read_members(file)
    if format is OutputFormat.JSON:
        print_json(
            {"federation": known.federation, "members": [_as_object(member) for member in known.members]}
        )
        return
    rows = [
        (
            member.name,
            "revoked" if member.revoked else "member",
            ", ".join(member.roles),
            ", ".join(member.speaks_for),
            "\n".join([*member.public_keys, *(f"{key} (revoked)" for key in member.revoked_keys)]),
        )
        for member in known.members
    ]
    print_table(
        f"Members of {known.federation}", ("member", "state", "roles", "speaks for", "public keys"), rows
    )


def _opened(file: Path, federation: str | None) -> Members:
    if os.path.exists(file):
        known = read_members(file)
        if federation not in (None, known.federation):
            raise ConfigurationError(
                f"{file}: has the members of {known.federation!r}, not of {federation!r}"
            )
        return known
    if federation is None:
        raise ConfigurationError(
            f"{file}: there is no such file: say --federation, the federation's name, and it is made"
        )
    return Members(federation)


def _member(file: Path, known: Members, name: str) -> Member:
    member = known.named(name)
    if member is None:
        names = ", ".join(one.name for one in known.members) or "nobody"
        raise ConfigurationError(f"{file}: {name!r} is no member; members are {names}")
    return member


def _as_object(member: Member) -> dict[str, object]:
    return {
        "name": member.name,
        "revoked": member.revoked,
        "roles": list(member.roles),
        "speaks_for": list(member.speaks_for),
        "public_keys": list(member.public_keys),
        "revoked_keys": list(member.revoked_keys),
    }
