"""From the previous release to this one and back: real processes of both on one file."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from command_line import run_command
from releases import BEFORE, FIRST, NOW, Federation, Release, code_of, later_release, python_of
from soak.subject import find_soaked, soaked_systems

from streamfl import __version__

MORE = 20
WITHOUT = [name for name in soaked_systems() if not find_soaked(name)[1].way_back]
WITH_A_WAY_BACK = [name for name in soaked_systems() if name not in WITHOUT]


@pytest.fixture(name="before", scope="module")
def _before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The previous release's code, in its own folder."""
    return code_of(BEFORE, tmp_path_factory.mktemp("before"))


@pytest.fixture(name="opened")
def _opened() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def taken_over(
    system: str, before: Path, folder: Path, opened: ExitStack
) -> tuple[Federation, Release, Release]:
    """What the release before left when it was killed at work; and a process of each release."""
    federation = opened.enter_context(closing(Federation(system, folder, recorded=True)))
    assert len(federation.predicted()) < FIRST, "there is nothing left to do"
    old, now = (
        opened.enter_context(closing(Release(code, folder / "log.txt", federation.late)))
        for code in (before, NOW)
    )
    return federation, old, now


def run(federation: Federation, first: Release) -> None:
    """All members run one release until all is predicted."""
    for member in federation.files.values():
        first.start(member)
    federation.write(MORE)
    federation.finish(first)


def run_and_replace(
    federation: Federation, first: Release, second: Release, orders: tuple[list[Path], list[Path]]
) -> None:
    """All members run the first release, are replaced by the second, and by the first again, in these
    orders."""
    run(federation, first)
    for leaving, coming, order in ((first, second, orders[0]), (second, first, orders[1])):
        for member in order:
            leaving.stop(member)
            federation.write(MORE // 2)
            coming.start(member)
            federation.write(MORE // 2)
            federation.finish(leaving, coming)
    judge(federation, first)


def judge(federation: Federation, release: Release) -> None:
    federation.rest(release)
    assert federation.verdict().wrong == []


def test_the_release_before_runs_without_modules_of_this_one(before: Path) -> None:
    """Protects the tests below: an editable install fills in every module that the old code lacks, and then
    they would try this release against itself."""
    command, environment = python_of(
        before, "-c", "import importlib.util as found; print(found.find_spec('streamfl.contract'))"
    )
    assert subprocess.check_output(command, env=environment, text=True) == "None\n"


@pytest.mark.parametrize("system", WITH_A_WAY_BACK)
def test_this_release_takes_over_and_members_are_replaced_back_and_forth(
    system: str, before: Path, tmp_path: Path, opened: ExitStack
) -> None:
    """Protects upgrades: this release reads the topics that the previous one left when it was killed at work,
    and continues from its state.

    Also protects rolling downgrades and upgrades: the members are replaced one after another by the previous
    release's, and then back, so that both releases run side by side. The order of the upgrade is that of the
    page on upgrades, if it gives one; the last member goes back first. Every sample is predicted once,
    nothing is refused, and all of the soak's checks of state and messages pass, as with one release.
    """
    federation, old, now = taken_over(system, before, tmp_path, opened)
    members = list(federation.files.values())
    run_and_replace(federation, now, old, (members[::-1], members))


@pytest.mark.parametrize("system", WITHOUT)
@pytest.mark.parametrize("rolling", [False, True])
def test_who_cannot_go_back_takes_over_and_is_replaced(
    system: str, rolling: bool, before: Path, tmp_path: Path, opened: ExitStack
) -> None:
    """Protects the upgrades of systems whose state the release before does not read any more once this one
    has learnt: the same in two parts. Where the release before has done all the work, there is a way back."""
    federation, old, now = taken_over(system, before, tmp_path, opened)
    if rolling:
        members = list(federation.files.values())
        run_and_replace(federation, old, now, (members, members[::-1]))
    else:
        run(federation, now)
        judge(federation, now)


@pytest.mark.parametrize("system", soaked_systems()[:1])
def test_state_of_a_later_layout_is_refused_and_stays(
    system: str,
    tmp_path: Path,
    opened: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Protects a downgrade that goes too far: state with a later layout is neither misread nor overwritten.
    The process ends with 2 and names both releases, `streamfl check` reports it before, and the later release
    goes on unharmed.
    """
    changes = {
        "streamfl/state/state_settings.py": (
            "        layout: int = 1,\n",
            "        layout: int = 2,\n",
        ),
        "streamfl/__init__.py": (f'"{__version__}"', '"9.8.7"'),
    }
    code = later_release(tmp_path / "later", changes)
    federation = opened.enter_context(closing(Federation(system, tmp_path)))
    later = opened.enter_context(closing(Release(code, tmp_path / "log.txt")))
    for member in federation.files.values():
        later.start(member)
    federation.begin(later)
    federation.write(MORE)
    federation.finish(later)
    for member in federation.files.values():
        later.stop(member)
    before = federation.contents()
    told = (
        f"was written by streamfl 9.8.7 in layout 2, and this is streamfl {__version__}, which reads layouts "
        "up to 1"
    )
    for member in federation.files.values():
        now = opened.enter_context(closing(Release(NOW, tmp_path / "log.txt")))
        now.start(member)
        assert now.wait() == 2
        assert told in now.said
        refused, out, _ = run_command(monkeypatch, capsys, "check", member, "--format", "json")
        assert refused == 4
        assert told in out
    assert federation.contents() == before
    for member in federation.files.values():
        later.start(member)
    federation.write(MORE)
    federation.finish(later)


@pytest.mark.parametrize("system", soaked_systems()[:1])
def test_messages_of_another_version_are_kept_and_nobody_ends(
    system: str, tmp_path: Path, opened: ExitStack
) -> None:
    """Protects a federation with one member upgraded too early across a change of protocol: unknown messages
    are not guessed at. They become dead letters with that reason, which can be replayed, and all processes go
    on.
    """
    code = later_release(
        tmp_path / "later", {"streamfl/encoding/wire.py": ("\nVERSION = 1\n", "\nVERSION = 2\n")}
    )
    federation = opened.enter_context(closing(Federation(system, tmp_path)))
    later, now = (opened.enter_context(closing(Release(one, tmp_path / "log.txt"))) for one in (code, NOW))
    *others, last = federation.files.values()
    later.start(last)
    for member in others:
        now.start(member)
    federation.write(MORE)
    federation.wait(lambda: bool(federation.refused()), later, now)
    assert {dict(letter.headers)["error"] for letter in federation.refused()} == {b"version"}
    federation.rest(later, now)
