"""What a kind of role lacks is told together."""

from __future__ import annotations

from typing import Any

import pytest

from streamfl.configuration.settings import GivenSettings, load_settings
from streamfl.contract.role import ConfigurationError
from streamfl.runtime.kinds import find_kind

PARTIES = {"name": "court", "parties": ["north", "south"]}
DP = {
    "federation": {**PARTIES, "columns": {"north": 2, "south": 1}},
    "window": {"rows": 100},
    "privacy": {"epsilon": 2.0, "delta": 0.0001},
}
SECTIONS = ["party", "samples", "labels"]


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        (
            "dp-frank-wolfe-party",
            {**DP, "bus": {"url": "kafka://h:1", "processing_guarantee": "at_least_once"}},
            [
                *SECTIONS,
                "privacy.ledger",
                "privacy.ledger_file",
                "privacy.secret_file",
                "bus.processing_guarantee",
            ],
        ),
        ("dp-frank-wolfe-server", {**DP, "party": {"name": "north"}}, ["party"]),
        (
            "quasi-newton-guest",
            {"federation": PARTIES},
            [
                *SECTIONS,
                "encryption.key_fingerprint",
                "encryption.secret_file",
                "encryption.link_secret_file",
            ],
        ),
        (
            "quasi-newton-coordinator",
            {"federation": PARTIES, "party": {"name": "north"}},
            ["party", "encryption.key_fingerprint", "encryption.key_file"],
        ),
        ("vafl-party", {"federation": {**PARTIES, "embedding_size": 1}}, ["party", "samples"]),
        ("vafl-coordinator", {"federation": {**PARTIES, "embedding_size": 1}}, ["labels"]),
        ("fdskl-worker", {"federation": PARTIES}, ["party", "samples"]),
        (
            "fdskl-worker",
            {"federation": PARTIES, "party": {"name": "north"}},
            ["samples", "labels"],
        ),
    ],
)
def test_all_is_told_at_once(kind: str, given: dict[str, Any], told: list[str]) -> None:
    """Protects the first hour with a system that needs secrets: each start told of one more that was
    missing."""
    settings = GivenSettings({**given, "role": {"kind": kind}})
    with pytest.raises(ConfigurationError) as refusal:
        load_settings(settings, find_kind(kind).settings)
    lines = str(refusal.value).removeprefix("the settings: ").splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted(told)
    assert all(
        "is missing: " in line or "has no meaning at" in line or "is expected" in line for line in lines
    )
