"""The rights that ``streamfl topics`` prints, given to a client on a broker with access control, and no
others."""

from __future__ import annotations

from pathlib import Path

import pytest
from access import Secured, check_printed_rights_are_enough
from broker import Broker

pytestmark = pytest.mark.broker

ROLE = Secured(
    "pofmkl-client",
    "clients = 2",
    '[samples]\ntopic = "readings"\nfeatures = ["x"]\nlabel = "y"\n',
    source="readings",
    state="pofmkl-client.state",
    dead_letters="dead-letters",
)


def test_the_rights_that_are_printed_are_enough(secured: Broker, tmp_path: Path) -> None:
    """Protects whoever grants just these rights: the role starts, reads, remembers, and puts a record that it
    cannot read aside."""
    check_printed_rights_are_enough(secured, tmp_path, ROLE)
