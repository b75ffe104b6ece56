"""The rights that ``streamfl topics`` prints, given to a party on a broker with access control, and no
others."""

from __future__ import annotations

from pathlib import Path

import pytest
from access import Secured, check_printed_rights_are_enough
from broker import Broker

pytestmark = pytest.mark.broker

ROLE = Secured(
    "vafl-party",
    'parties = ["bank", "shop"]\nembedding_size = 1',
    '[party]\nname = "shop"\n[samples]\ntopic = "baskets"\nfeatures = ["x"]\n',
    source="baskets",
    state="shop.state",
    dead_letters="shop.dead-letters",
)


def test_the_rights_that_are_printed_are_enough(secured: Broker, tmp_path: Path) -> None:
    """Protects whoever grants just these rights: the role starts, reads, remembers, and puts a record that it
    cannot read aside."""
    check_printed_rights_are_enough(secured, tmp_path, ROLE)
