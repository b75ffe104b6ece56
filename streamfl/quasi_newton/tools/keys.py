"""``streamfl keys``: the coordinator's private keys, and the fingerprint by which every member knows the
public key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamfl.contract.role import ConfigurationError
from streamfl.quasi_newton.encryption import bignum
from streamfl.quasi_newton.encryption.key_file import add_key, make_key_file, read_key_file, remove_key
from streamfl.quasi_newton.encryption.keys import LARGEST_BITS, SMALLEST_BITS, STEP_BITS
from streamfl.terminal.console import FormatOption, OutputFormat, print_json, print_table, print_text, say

__all__ = ["keys"]

keys = typer.Typer(
    name="keys",
    help="Keys of a quasi-Newton federation's coordinator: make one, change it, show its fingerprint.",
    no_args_is_help=True,
)

FileArgument = Annotated[
    Path,
    typer.Argument(metavar="KEY_FILE", help="The coordinator's file of private keys (encryption.key_file)."),
]


@keys.command()
def init(
    key_file: Annotated[
        Path, typer.Argument(metavar="KEY_FILE", help="The new file, which nobody else may read.")
    ],
    bits: Annotated[
        int,
        typer.Option(min=SMALLEST_BITS, max=LARGEST_BITS, help="Length of the key (encryption.key_bits)."),
    ] = 2048,
) -> None:
    """Make a key where the coordinator runs, and print its fingerprint. The file is not overwritten."""
    bignum.require()
    print_text(make_key_file(key_file, _length(bits)).public.fingerprint)
    length = "" if bits == 2048 else f" and encryption.key_bits = {bits}"
    say(
        f"made {key_file}: it stays here and leaves this machine by no way but a backup that only its owner "
        "can read\n"
        f'1. set encryption.key_file = "{key_file}" here\n'
        f"2. set encryption.key_fingerprint to the fingerprint above{length}, here and at every party; tell "
        "it to each party "
        "by a way that nobody else can change, for who can put another key in its place can decrypt"
    )


@keys.command()
def rotate(
    key_file: FileArgument,
    bits: Annotated[
        int | None,
        typer.Option(
            min=SMALLEST_BITS, max=LARGEST_BITS, help="Length of the new key; left out: as the old one's."
        ),
    ] = None,
) -> None:
    """Make the next key, at the head of the file, and print its fingerprint. The old key stays in use until
    settings change."""
    bignum.require()
    old = read_key_file(key_file)[0].public
    new = add_key(key_file, _length(bits or old.bits)).public
    print_text(new.fingerprint)
    length = "" if new.bits == old.bits else f" and encryption.key_bits = {new.bits}"
    say(
        f"{key_file} has a new key, and the old ones behind it; nothing has changed for the federation "
        "yet\n1. wait until no training is under way, if there is time: one that is ends, and is begun again "
        f"under the new key\n2. set encryption.key_fingerprint to the fingerprint above{length}, here and at "
        "every party, and restart each member, in any order; the next training begins once all have it\n3. "
        f"then remove the old key: streamfl keys remove {key_file} --fingerprint {old.fingerprint}"
    )


@keys.command()
def show(key_file: FileArgument, format: FormatOption = OutputFormat.TABLE) -> None:
    """Show the fingerprints and lengths of a file's keys, newest first. Nothing secret is shown."""
    bignum.require()
    found = [key.public for key in read_key_file(key_file)]
    if format is OutputFormat.JSON:
        print_json({"keys": [{"fingerprint": key.fingerprint, "bits": key.bits} for key in found]})
        return
    rows = [(str(number), str(key.bits), key.fingerprint) for number, key in enumerate(found, start=1)]
    print_table(f"Keys of {key_file}, newest first", ("key", "bits", "fingerprint"), rows)


@keys.command()
def remove(
    key_file: FileArgument,
    fingerprint: Annotated[str, typer.Option(help="Of the old key, as `streamfl keys show` prints it.")],
) -> None:
    """Remove an old key that is in no member's settings any more. Messages under it can never be decrypted
    again."""
    bignum.require()
    remove_key(key_file, fingerprint)
    say(
        f"removed {fingerprint} from {key_file}: delete it from backups too, and nobody can read old "
        "messages any more"
    )


def _length(bits: int) -> int:
    if bits % STEP_BITS:
        raise ConfigurationError(f"--bits {bits}: a multiple of {STEP_BITS} is expected")
    return bits
