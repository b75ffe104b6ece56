"""The ledger file: it only grows, no link is ever replaced, and a link torn by a crash does not count."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfl.contract.role import ConfigurationError
from streamfl.privacy.anchor import Anchor, examine_link, note_link


def link(number: int) -> bytes:
    return number.to_bytes(24, "big")


@pytest.fixture(name="anchor")
def _anchor(tmp_path: Path) -> Anchor:
    return Anchor.create(tmp_path / "ledger", "people", "bank")


def test_links_are_noted_once_each_in_their_order(anchor: Anchor) -> None:
    """Protects the order of releases: a link is never written in another's place, or before earlier ones."""
    assert anchor.note(1, link(1)) is None
    assert anchor.note(2, link(2)) is None
    assert anchor.note(1, link(1)) is None
    assert anchor.note(2, link(2)) is None
    refusal = anchor.note(2, link(9))
    assert refusal is not None
    assert "rolled back" in refusal
    ends_before = anchor.note(4, link(4))
    assert ends_before is not None
    assert "ends after 2" in ends_before
    assert anchor.links() == [link(1), link(2)]
    assert Path(anchor.path).stat().st_mode & 0o777 == 0o600


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 1)), max_size=20))
# Each link is written to the disk.
@settings(max_examples=25, deadline=None)
def test_no_place_ever_has_two_links(attempts: list[tuple[int, int, int]]) -> None:
    """Protects the promise itself: for each lane and number at most one link is ever acknowledged, whatever
    is attempted."""
    acknowledged: dict[tuple[int, int], int] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger"
        Anchor.create(path, "people", "bank")
        for number, content, lane in attempts:
            if Anchor.open(path, "people", "bank").note(number, link(content), lane) is None:
                assert acknowledged.setdefault((lane, number), content) == content


@pytest.mark.parametrize("torn", [1, 31])
def test_a_torn_link_is_none(anchor: Anchor, torn: int) -> None:
    """Protects a party that lost power: half a link was never acknowledged, so another may take its place."""
    anchor.note(1, link(1))
    anchor.note(2, link(2))
    path = Path(anchor.path)
    os.truncate(path, path.stat().st_size - torn)
    assert anchor.links() == [link(1)]
    assert anchor.note(2, link(7)) is None
    assert anchor.links() == [link(1), link(7)]
    assert path.stat().st_size == 512 + 2 * 32


NOTING = """
import sys
from streamfl.privacy.anchor import LINK_BYTES, Anchor
anchor = Anchor.open(sys.argv[1], "people", "bank")
for number in range(1, 100_000):
    assert anchor.note(number, number.to_bytes(LINK_BYTES, "big")) is None
    print(number, flush=True)
"""


def test_a_process_that_is_killed_has_noted_what_it_acknowledged(anchor: Anchor) -> None:
    """Protects releases from kill -9: each release that left is in the file, and another process continues
    from there."""
    for acknowledged in (5, 9):
        with subprocess.Popen(
            [sys.executable, "-c", NOTING, anchor.path], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if int(line) >= acknowledged:
                    process.kill()
                    break
        links = anchor.links()
        assert len(links) >= acknowledged
        assert links == [link(number + 1) for number in range(len(links))]


def test_what_a_disk_made_longer_and_did_not_write_is_none(anchor: Anchor) -> None:
    """Protects a party that lost power: zeros at the end of its file must not make it refuse all further
    releases."""
    anchor.note(1, link(1))
    os.truncate(anchor.path, 512 + 3 * 32)
    assert anchor.note(2, link(2)) is None
    assert anchor.links() == [link(1), link(2)]
    assert Path(anchor.path).stat().st_size == 512 + 2 * 32


def test_lanes_know_nothing_of_one_another(anchor: Anchor) -> None:
    """Protects work that is repeated after a crash in another order: only the order within a lane counts."""
    anchor.note(1, link(1), 0)
    anchor.note(1, link(2), 1)
    anchor.note(2, link(3), 0)
    assert (anchor.note(1, link(2), 1), anchor.note(1, link(1), 0)) == (None, None)
    assert (anchor.links(0), anchor.links(1)) == ([link(1), link(3)], [link(2)])


def test_the_link_in_front_is_the_state_s(anchor: Anchor) -> None:
    """Protects a release before the file was compared with the state: it continues after the state's link, or
    it is refused."""
    assert anchor.note(1, link(1), before=b"") is None
    assert anchor.note(2, link(2), before=link(1)) is None
    for number in (2, 3):
        assert "another release as number" in (anchor.note(number, link(number), before=link(9)) or "")
    assert anchor.note(2, link(2), before=link(1)) is None
    assert anchor.links() == [link(1), link(2)]


def test_a_new_link_waits_for_another_lane_and_an_old_one_does_not(anchor: Anchor) -> None:
    """Protects a lane that was rolled back while the other goes on. Repeated work finds its link in the
    file."""
    anchor.note(1, link(1))
    anchor.note(1, link(1), 1)
    anchor.note(2, link(2), 1)
    assert "has 2 releases of another chain" in (anchor.note(2, link(2), most={1: 1}) or "")
    assert anchor.note(1, link(1), most={1: 0}) is None
    assert anchor.note(2, link(2), most={1: 2}) is None


def test_a_link_that_no_disk_has_confirmed_is_written_again(
    anchor: Anchor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects acknowledged links from a failed disk. A link in the file may only be in the disk's cache,
    which is lost when the disk fails to write it. So the link is written again, in its own place.
    """
    done: list[str] = []
    write, sync = os.pwrite, os.fsync

    def failing(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def writing(file: int, content: bytes, at: int) -> int:
        done.append(f"write {at}")
        return write(file, content, at)

    def syncing(file: int) -> None:
        done.append("sync")
        sync(file)

    anchor.note(1, link(1))
    anchor.note(1, link(5), 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="Input/output"):
            anchor.note(2, link(2))
    anchor.note(2, link(6), 1)
    before = Path(anchor.path).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", syncing)
        patch.setattr(os, "pwrite", writing)
        assert anchor.note(2, link(2)) is None
    assert done == [f"write {512 + 2 * 32}", "sync"]
    assert Path(anchor.path).read_bytes() == before


def test_a_state_is_compared_with_the_file(anchor: Anchor) -> None:
    """Protects against a file that was set back: the operator learns it before anything is released."""
    anchor.note(1, link(1))
    assert anchor.examine(0, b"") == 1
    assert anchor.examine(1, link(1)) == 0
    assert "another release" in str(anchor.examine(1, link(2)))
    assert "ends after 1" in str(anchor.examine(2, link(2)))


def test_it_is_work_that_can_be_done_twice(anchor: Anchor) -> None:
    """Protects a worker that repeats a step: the same work has the same result."""
    work = msgspec.msgpack.encode((anchor.path, "people", "bank", anchor.identity, 1, link(1), 0))
    assert (note_link(work), note_link(work), examine_link(work)) == (b"", b"", b"0")
    assert b"another" in note_link(work.replace(link(1), link(2)))


def test_the_file_of_another_ledger_is_refused(anchor: Anchor, tmp_path: Path) -> None:
    """Protects the ledger from a wrong file: a missing file and another ledger's are errors that name the
    command to make one."""
    wrong = (
        (tmp_path / "none", "people", "bank"),
        (anchor.path, "others", "bank"),
        (anchor.path, "people", "b"),
    )
    for path, ledger, party in wrong:
        with pytest.raises(ConfigurationError, match="streamfl ledger init"):
            Anchor.open(path, ledger, party)
    assert Anchor.open(anchor.path, "people", "bank") == anchor
    for content in (b"", b"{}\n", Path(anchor.path).read_bytes()[:100]):
        (tmp_path / "wrong").write_bytes(content)
        (tmp_path / "wrong").chmod(0o600)
        with pytest.raises(ConfigurationError, match="no ledger file"):
            Anchor.open(tmp_path / "wrong", "people", "bank")


def test_nobody_else_may_write_it(anchor: Anchor) -> None:
    """Protects the file from other users of the machine."""
    Path(anchor.path).chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        Anchor.open(anchor.path, "people", "bank")


def test_a_ledger_begins_once(anchor: Anchor, tmp_path: Path) -> None:
    """Protects existing links from a second `init`, and a running worker from a replaced file."""
    with pytest.raises(ConfigurationError, match="exists already"):
        Anchor.create(anchor.path, "people", "bank")
    other = Anchor.create(tmp_path / "new", "people", "bank")
    os.replace(other.path, anchor.path)
    with pytest.raises(ConfigurationError, match="another ledger file"):
        anchor.note(1, link(1))


def test_old_links_are_found_however_long_the_file_is(anchor: Anchor) -> None:
    """Protects work that is repeated much later: the file is read from its end in pieces, and every link has
    to be found."""
    for number in range(1, 200):
        assert anchor.note(number, link(number)) is None
    assert [anchor.note(number, link(number)) for number in (1, 64, 135, 199)] == [None] * 4
    assert [anchor.note(number, link(0)) is None for number in (1, 64, 135, 199)] == [False] * 4
    assert anchor.note(201, link(201)) is not None


@pytest.mark.parametrize("others", [0, 3, 4, 5, 40])
def test_the_end_of_another_lane_is_found_however_far_back_it_is(
    anchor: Anchor, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """Protects each prediction after a fit from a walk over all predictions since; the file is read in
    blocks, from its end."""
    monkeypatch.setattr("streamfl.privacy.anchor.LATEST_AT_ONCE", 4)
    anchor.note(1, link(1))
    anchor.note(2, link(2))
    for number in range(1, others + 1):
        assert anchor.note(number, link(number), 1, most={0: 2}) is None
    refused = anchor.note(others + 1, link(others + 1), 1, most={0: 1})
    assert "has 2 releases of another chain" in (refused or "")
