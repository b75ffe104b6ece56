"""Identities in a federation whose members have keys: key files, the members' file, seals on messages,
signatures on models.

Knows no system and no bus. docs/identity.md says what it protects, and what not.
"""

from streamfl.identity.authentication import SEAL_BYTES, Identity, load_identity, renew_identities
from streamfl.identity.channels import sealed_channels
from streamfl.identity.keys import PrivateKey, PublicKey, add_key, make_key_file, read_key_file
from streamfl.identity.members import Member, Members, read_members, write_members
from streamfl.identity.signed_records import is_sealed, signer_of_record

__all__ = [
    "SEAL_BYTES",
    "Identity",
    "Member",
    "Members",
    "PrivateKey",
    "PublicKey",
    "add_key",
    "is_sealed",
    "load_identity",
    "make_key_file",
    "read_key_file",
    "read_members",
    "renew_identities",
    "sealed_channels",
    "signer_of_record",
    "write_members",
]
