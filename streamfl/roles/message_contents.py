"""Messages with one header for all kinds and a content for each kind, which is encoded apart from the
header."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from streamfl.contract.role import BadRecord
from streamfl.encoding.wire import LARGEST_VALUE, Codec
from streamfl.roles.message_fragments import Limits

__all__ = ["HEADER_BYTES", "content_limits", "content_of", "message_codec", "read_content"]

HEADER_BYTES: Final = 4_096
"""More bytes than a message takes without its content."""

# Most fragmented messages that wait in a partition, and the seconds for which they do.
UNDER_WAY, FRAGMENT_SECONDS = 256, 86_400.0

Header = TypeVar("Header", bound=msgspec.Struct)

_encode = msgspec.msgpack.Encoder().encode
_decoders: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {}
_codecs: dict[tuple[type[Any], int], Codec[Any]] = {}


def message_codec(of: type[Header], content_bytes: int) -> Codec[Header]:
    """The codec of messages with at most ``content_bytes`` of content. Messages longer than a record are sent
    in fragments."""
    place = of, max(LARGEST_VALUE, content_bytes + HEADER_BYTES)
    # The check of the type takes longer than all else that a small role does at its start.
    if place not in _codecs:
        _codecs[place] = Codec(*place)
    return _codecs[place]


def content_limits(content_bytes: int, fragment_bytes: int) -> Limits:
    """Bounds of these messages in a partition, where each sender has at most two of them under way."""
    return Limits(content_bytes + HEADER_BYTES, UNDER_WAY, UNDER_WAY, FRAGMENT_SECONDS, fragment_bytes)


def content_of(content: msgspec.Struct | Sequence[Any]) -> bytes:
    """Encodes a content."""
    return _encode(content)


def read_content(content: bytes, of: type[Any]) -> Any:
    """Decodes what :func:`content_of` encoded. BadRecord with reason malformed."""
    if of not in _decoders:
        _decoders[of] = msgspec.msgpack.Decoder(of)
    try:
        return _decoders[of].decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecord("malformed", f"{of.__name__}: {error}") from None
