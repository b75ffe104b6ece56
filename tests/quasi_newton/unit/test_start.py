"""What `check` and `run` tell at the start: what is missing, and a cluster or settings with which no training
would succeed."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import run_command
from quasi_newton.federations import Secrets, settings_of

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.role import ConfigurationError
from streamfl.quasi_newton.encryption import bignum
from streamfl.quasi_newton.roles import ROLES
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker
from streamfl.runtime.memory_bus import MemoryBus

Command = Callable[..., tuple[int, str, str]]


class Place:
    """A member's settings file and its memory bus, on which its topics are."""

    def __init__(self, folder: Path, member: str) -> None:
        self.url = f"memory://{uuid.uuid4().hex}"
        self.path = folder / f"{member}.toml"
        self.settings = settings_of(member, 1, Secrets(folder))
        self.bus = MemoryBus.at(self.url)
        self.write({})

    def write(self, changes: dict[str, dict[str, Any]]) -> None:
        given = self.settings.model_dump(mode="json", exclude_none=True, exclude_unset=True)
        given["bus"] = {"url": self.url}
        for section, values in changes.items():
            given[section] = {**given.get(section, {}), **values}
        lines = []
        for section, values in given.items():
            lines += [f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
        self.path.write_text("\n".join(lines) + "\n")

    def make_topics(self, **partitions: int) -> None:
        """partitions: of topics, by the end of their names."""
        for spec in ROLES[self.settings.role.kind].topics(self.settings):
            number = next(
                (count for end, count in partitions.items() if spec.name.endswith(end)), spec.partitions or 1
            )
            self.bus.create([replace(spec, partitions=number)])


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


@pytest.fixture(name="command")
def _command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return lambda *words: run_command(monkeypatch, capsys, *words)


@pytest.mark.parametrize(
    ("member", "changes", "told"),
    [
        (
            "h1",
            {"preprocessing": {"method": "quantile-bins"}},
            "3 columns become up to 24 .* up to 480 rows, and .* 100:",
        ),
        ("g", {"preprocessing": {"method": "quantile-bins"}}, "3 columns become up to 25 .* up to 500 rows"),
        ("g", {"learning": {"min_batch": 64, "batch": 79}}, "3 columns become up to 4 .* up to 80 rows"),
        ("h1", {"learning": {"min_batch": 64, "batch": 79}}, ""),
        ("g", {"learning": {"batch": 80}}, ""),
    ],
)
def test_check_knows_what_a_training_will_refuse(
    command: Command, tmp_path: Path, member: str, changes: dict[str, dict[str, Any]], told: str
) -> None:
    """Protects from a training that ends after the alignment: bins make more columns than a batch has rows
    for."""
    place = Place(tmp_path, member)
    place.make_topics()
    place.write(changes)
    code, out, _ = command("check", place.path, "--format", "json")
    assert code == 0
    found = [one for one in json.loads(out)["checks"] if one["check"] == "learning.batch"]
    assert [bool(one["warns"]) for one in found] == [True] * bool(told)
    assert not told or re.search(told, found[0]["detail"])


@pytest.mark.parametrize("topic", ["labels", "g-samples"])
def test_a_topic_of_several_partitions_is_told(command: Command, tmp_path: Path, topic: str) -> None:
    """Protects a training from half of its entities: whoever makes topics by habit with several partitions
    hears of it at once. (Topics between members may have more: tests/house/test_further_partitions.py.)"""
    place = Place(tmp_path, "g")
    place.make_topics(**{topic: 3})
    text = "has 3 partitions, 1 is needed, for all entities are rows of one training table"
    code, out, _ = command("check", place.path, "--format", "json")
    assert code == 4
    told = next(found for found in json.loads(out)["checks"] if not found["passed"])
    assert told["detail"] == text
    # The state of a party cannot follow an input that is given more partitions, too.
    assert "give the other as many" in told["remedy"]
    code, _, said = command("run", place.path)
    assert code == 2
    assert text in said


@pytest.mark.parametrize("member", ["g", "h1", "c"])
def test_who_lacks_the_extra_is_told_at_the_start(
    command: Command, tmp_path: Path, member: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects an operator: a member without gmpy2 ends with a number and the line to type, before it has
    joined its group."""
    place = Place(tmp_path, member)
    place.make_topics()
    monkeypatch.setattr(bignum, "gmpy2", None)
    for word in ("check", "run"):
        code, out, said = command(word, place.path)
        assert code == 2
        assert "pip install 'streamfl[paillier]'" in " ".join((out + said).split())
    place.write({"encryption": {"precision": "plain"}})
    assert command("check", place.path)[0] == 0


def test_a_key_that_can_be_broken_has_to_be_meant(tmp_path: Path) -> None:
    """Protects the parties from a length that was taken over from a test."""
    place = Place(tmp_path, "g")
    content = place.settings.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    content["bus"] = {"url": "kafka://127.0.0.1:9"}
    with pytest.raises(
        ValueError, match=r"encryption.key_bits = 512: keys of fewer than 2048 bits can be broken"
    ):
        type(place.settings).model_validate(content)
    content["encryption"]["study"] = True
    assert isinstance(type(place.settings).model_validate(content), RoleSettings)


def test_the_key_may_change_under_the_state_and_what_is_learnt_may_not(tmp_path: Path) -> None:
    """Protects a rotation from a member that does not come back, and state from a key that its numbers do not
    fit."""
    place = Place(tmp_path, "h1")
    place.make_topics()
    place.bus.write(
        [Outgoing("h1-samples", b"customer", json.dumps(dict.fromkeys(("x0", "x1", "x2"), 0.5)).encode(), 0)]
    )

    def take_up(**encryption: Any) -> None:
        changed = place.settings.encryption.model_copy(update=encryption)
        worker = build_worker(place.settings.model_copy(update={"encryption": changed}), place.bus)
        with closing(worker):
            for _ in range(5):
                worker.step(0.01)

    take_up()
    take_up(key_fingerprint="1" * 64, key_bits=2048)
    with pytest.raises(ConfigurationError, match=r"encryption.mask_gradients was true, is false"):
        take_up(mask_gradients=False)


def test_a_key_file_without_the_pinned_key_is_told(command: Command, tmp_path: Path) -> None:
    """Protects a coordinator that was given another's file, or that was to change its key and has not: it
    does not start."""
    place = Place(tmp_path, "c")
    place.make_topics()
    place.write({"encryption": {"key_fingerprint": "0" * 64}})
    code, _, said = command("run", place.path)
    assert code == 2
    assert f"has no key of 512 bits with encryption.key_fingerprint = {'0' * 64}" in said
    with closing(place.bus):
        assert place.bus.committed(place.settings.group) == {}
