"""What a ledger's changelog holds."""

from __future__ import annotations

from typing import Annotated

import msgspec

from streamfl.encoding.wire import Count
from streamfl.privacy.anchor import IDENTITY_BYTES, LINK_BYTES
from streamfl.privacy.summed_ledger import SUM_BYTES

__all__ = ["LatestRelease", "LedgerContent", "PrivacyTerms", "ReleaseChain"]


class ReleaseChain(msgspec.Struct, array_like=True, frozen=True):
    """identity: of the ledger's first anchor. number: of releases. head, link: the last ones, if any."""

    identity: Annotated[bytes, msgspec.Meta(min_length=IDENTITY_BYTES, max_length=IDENTITY_BYTES)]
    number: Count = 0
    head: Annotated[bytes, msgspec.Meta(max_length=LINK_BYTES)] = b""
    link: Annotated[bytes, msgspec.Meta(max_length=LINK_BYTES)] = b""


class LatestRelease(msgspec.Struct, array_like=True, frozen=True):
    """A federation's latest release for a fit. window: the latest that was frozen. link: its number in the
    chain of fits."""

    window: Count = 0
    link: Count = 0


class PrivacyTerms(msgspec.Struct, array_like=True, frozen=True):
    """The promise for an entity over all parties. shares: by party.

    A party knows only its own spend. Under other shares, or with other parties, all parties together could
    spend more than one budget, and no party would see it.
    """

    epsilon: float
    delta: float
    shares: dict[str, float]


class LedgerContent(msgspec.Struct, array_like=True, frozen=True):
    """entities: how many something was released of. content: digest of what is remembered, if anything is."""

    entities: Count = 0
    content: Annotated[bytes, msgspec.Meta(max_length=SUM_BYTES)] = b""
