"""Manifests of other packages: whatever is wrong with one of them, the others work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from streamfl.cli import command_places
from streamfl.cli.contributed import with_options
from streamfl.contract import system as system_module
from streamfl.contract.role import ConfigurationError
from streamfl.contract.system import System, installed_systems, load, load_parts

Install = Callable[..., None]
FIRST = installed_systems()[0]


def manifest(**parts: Any) -> System:
    return System(
        **{"name": "guest", "summary": "a guest", "kinds": ("guest",), "roles": "guest:ROLES", **parts}
    )


@pytest.fixture(name="install")
def _install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package whose entry point loads this object, or raises it."""
    real = system_module.entry_points(group="streamfl.systems")

    class Guest(EntryPoint):
        found: Any

        def load(self) -> Any:
            if isinstance(Guest.found, BaseException):
                raise Guest.found
            return Guest.found() if callable(Guest.found) else Guest.found

    def install(found: Any) -> None:
        Guest.found = found
        guest = Guest("guest", "guest:SYSTEM", "streamfl.systems")
        monkeypatch.setattr(system_module, "entry_points", lambda group: [guest, *real])
        forget_what_was_found()

    yield install
    monkeypatch.undo()
    forget_what_was_found()


def forget_what_was_found() -> None:
    for found in (installed_systems, command_places):
        found.cache_clear()


def test_a_system_that_is_right_is_there(install: Install) -> None:
    """Protects the tests below from leaving out everything."""
    install(manifest())
    assert "guest" in [system.name for system in installed_systems()]


def test_what_a_system_does_not_name_follows_from_its_members() -> None:
    """Protects authors: with members, `simulate`, `demo` and `replay` to the role that reads samples need no
    word more; what a manifest names itself is taken."""
    followed = manifest(kinds=("guest", "host"), members="guest:MEMBERS")
    assert (followed.simulate, followed.demo) == ("guest:MEMBERS.simulate", "guest:MEMBERS.demo")
    assert followed.sources == {"guest": "streamfl.simulation.sources:client_samples"}
    assert manifest(members="guest:MEMBERS", sources={"guest": "guest:own"}).sources == {"guest": "guest:own"}
    assert manifest().sources == {}


@pytest.mark.parametrize(
    "found",
    [
        ImportError("no module"),
        SystemExit(9),
        "no manifest",
        lambda: manifest(kinds=None),
        lambda: manifest(kinds="guest"),
        lambda: manifest(rank="first"),
        lambda: manifest(commands=["hello"]),
        lambda: manifest(simulate="guest"),
        lambda: manifest(name=FIRST.name),
        lambda: manifest(kinds=FIRST.kinds),
    ],
)
def test_a_broken_manifest_stops_nobody(
    install: Install, caplog: pytest.LogCaptureFixture, found: Any
) -> None:
    """Protects all workers from a broken package that is installed beside them: it is left out, with a log
    line."""
    own = installed_systems()
    with caplog.at_level(logging.WARNING):
        install(found)
        assert installed_systems() == own
    assert "left out" in caplog.text


def test_a_command_belongs_to_who_had_it_first(install: Install) -> None:
    """Protects a user's scripts from a package that brings a command of the same name."""
    own = command_places()
    taken = dict.fromkeys(own, "guest:command")
    install(manifest(commands={**taken, "hello": "guest:hello"}))
    assert command_places() == {**own, "hello": "guest:hello"}


def test_parts_that_cannot_be_loaded_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Protects the commands of all systems from a missing part of one."""
    places = {"good": "streamfl.contract.system:load", "gone": "json:nope", "away": "no.such.module:x"}
    assert load_parts(places) == {"good": load}
    assert "gone: json:nope" in caplog.text
    with pytest.raises(ConfigurationError, match="has no nope"):
        load("streamfl.contract.system:nope")


def test_an_option_that_is_no_option_is_refused_with_its_owner() -> None:
    """Protects the author of a system: the message names the system and the error."""

    def simulate(asked: object, speed=None) -> None:  # type: ignore[no-untyped-def]
        pass

    with pytest.raises(ConfigurationError, match=r"guest: the option --speed"):
        with_options(lambda: None, {"guest": simulate})
