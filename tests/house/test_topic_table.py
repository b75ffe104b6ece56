"""docs/security.md and the code agree on who writes each topic, who reads it and how readers know the
writer."""

from __future__ import annotations

from pathlib import Path

import pytest
from house.channel_table import TopicRow, rows_of_the_code

from streamfl.contract.system import installed_systems

HEADINGS = ("system", "topic", "written by", "read by", "with keys", "a stranger's record")

# Topics that only the worker itself uses.
OF_ONE_MEMBER = (".state", ".ledger", ".pieces")


@pytest.fixture(name="code", scope="module")
def _code() -> dict[tuple[str, str], TopicRow]:
    return rows_of_the_code()


@pytest.fixture(name="page", scope="module")
def _page() -> dict[tuple[str, str], dict[str, str]]:
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    _, _, table = text.partition("| " + " | ".join(HEADINGS) + " |\n")
    rows = [
        [cell.strip() for cell in line.strip("|\n").split(" | ")]
        for line in table.partition("\n\n")[0].splitlines()[1:]
    ]
    assert all(len(row) == len(HEADINGS) for row in rows)
    found = {(row[0], row[1].strip("`")): dict(zip(HEADINGS, row, strict=True)) for row in rows}
    assert len(found) == len(rows), "a topic stands there twice"
    return found


def test_the_table_has_every_topic_of_every_system_and_no_other(
    code: dict[tuple[str, str], TopicRow], page: dict[tuple[str, str], dict[str, str]]
) -> None:
    """Protects administrators who grant rights by the table: a missing topic would stay unprotected."""
    assert sorted(code.keys() - page.keys()) == []
    assert sorted(page.keys() - code.keys()) == []
    # A role that is missing from this test's settings would not be checked.
    own = [system for system in installed_systems() if system.roles.startswith("streamfl.")]
    assert {kind for system in own for kind in system.kinds} <= {
        kind for row in code.values() for kind in row.written_by
    }


def test_the_table_says_of_each_topic_who_writes_and_reads_it_and_what_keys_add(
    code: dict[tuple[str, str], TopicRow], page: dict[tuple[str, str], dict[str, str]]
) -> None:
    """Protects administrators from wrong rows: "sealed" on a topic without it would leave that topic open."""
    for place, row in code.items():
        told = page[place]
        assert told["written by"] == ", ".join(sorted(row.written_by)), place
        assert told["read by"] == (", ".join(sorted(row.read_by)) or "you"), place
        assert told["with keys"] == (" and ".join(sorted(row.keys)) or "no"), place
        assert told["a stranger's record"], place


def test_what_one_member_reads_of_another_is_sealed_or_signed(code: dict[tuple[str, str], TopicRow]) -> None:
    """Protects federations with keys: every message from another member proves who wrote it."""
    open_topics = [
        place
        for place, row in code.items()
        if row.read_by
        and not row.keys
        and "you" not in row.written_by
        and not place[1].endswith(OF_ONE_MEMBER)
    ]
    assert open_topics == []
    # The result of all members' work, which is applied unchanged.
    assert code["dp-frank-wolfe", "<federation>.model"].keys == {"signed"}
