"""``streamfl init`` writes what the kind of role reads, and nothing that it refuses: for every kind."""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

import pytest
from command_line import Command

from streamfl.cli.named_topics import users_channels
from streamfl.cli.preflight import read_configuration
from streamfl.configuration.shared import shared_keys
from streamfl.contract.system import System, find_system, installed_systems
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.pofmkl.roles import _fingerprint as pofmkl_fingerprint
from streamfl.runtime.bus import Outgoing, TopicSpec
from streamfl.runtime.kinds import find_kind
from streamfl.runtime.memory_bus import MemoryBus

# Quasi-Newton learns from labels 0 and 1 alone.
CASES = [
    (name, label)
    for system in installed_systems()
    for name in system.kinds
    for label in ("late", "cost")
    if (system.name, label) != ("quasi-newton", "cost")
]
PARTIES = ("--parties", "depot,shop", "--party")
ROWS = 24
# By system, what its users have to say beside the records.
SAID = {
    "pofmkl": ("--sample-id", "trip"),
    "vafl": ("--set", "federation.embedding_size=1"),
    "fdskl": (),
    "quasi-newton": ("--set", 'encryption.precision="plain"'),
    "dp-frank-wolfe": tuple(
        text
        for key in (
            "federation.columns={depot=3, shop=3}",
            f"window.rows={ROWS}",
            "bounds.centre=10",
            "bounds.bound=20",
            "bounds.label_centre=0",
            "bounds.label_bound=100",
            "privacy.epsilon=2.0",
            "privacy.delta=0.001",
            "privacy.insecure_test_noise=true",
        )
        for text in ("--set", key)
    ),
}

# By system, a setting that all members need alike, and that is not the default.
ALIKE = {
    "pofmkl": 'learning.loss="logistic"',
    "fdskl": "learning.columns_share=0.5",
    "quasi-newton": "alignment.limit=5000",
    "dp-frank-wolfe": "learning.radius=0.5",
}

# By system, the hash of what members compare, where the settings do not have it.
FINGERPRINTS: dict[str, Callable[[Any], int]] = {
    "pofmkl": pofmkl_fingerprint,
    "dp-frank-wolfe": lambda settings: Public(settings).fingerprint,
}


def bus_with_records(name: str) -> str:
    """The URL of a bus with samples and labels of the same keys."""
    url, drawn = f"memory://{name}", random.Random(3)
    bus = MemoryBus.at(url)
    bus.create([TopicSpec(topic, 1, compacted=False) for topic in ("rentals", "returns")])
    for number in range(ROWS):
        key, trip = f"bike-{number}".encode(), {"trip": f"t{number}"}
        sample = {**trip, "km": 30 * drawn.random(), "age": drawn.randrange(9), "slope": drawn.gauss(0, 1)}
        label = {**trip, "late": number % 2, "cost": 80 * drawn.random()}
        bus.write([Outgoing("rentals", key, json.dumps(sample).encode())])
        bus.write([Outgoing("returns", key, json.dumps(label).encode())])
    return url


@pytest.mark.parametrize(("name", "label"), CASES)
def test_what_is_written_is_what_the_kind_reads(
    name: str, label: str, tmp_path: Path, command: Command
) -> None:
    """Protects who follows "the same command with --role and another file": a section that the role refuses
    is a mistake that the user did not make, and one that it ignores says what does not hold."""
    system = find_system(name).name
    url, config = bus_with_records(tmp_path.name), tmp_path / "member.toml"
    of_system = SAID.get(system, ())
    party = () if system == "pofmkl" else (*PARTIES, "shop" if name == "quasi-newton-host" else "depot")
    records = ("--from-topic", "rentals", "--labels-topic", "returns", "--label", label)
    words = ("init", config, "--role", name, "--url", url, "--federation", "bikes", *records)

    code, _, error = command(*words, *party, *of_system)
    assert code == 0, error
    written = tomllib.loads(config.read_text())
    assert "Before it runs" not in config.read_text()
    # DP Frank-Wolfe has no secret and no ledger on a bus in memory.
    asked = [line for line in error.splitlines() if line.startswith("to fill in") and "privacy." not in line]
    assert asked == []

    configured = read_configuration(config)
    assert {"samples", "labels"} & written.keys() == users_channels(configured).keys()
    read_by = find_kind(name).settings.read_by.get("party", (name,))
    assert ("party" in written) == (party != () and name in read_by)
    if "label_range" in written.get("labels", {}):
        assert configured.settings.learning.loss == "square"
    assert command("topics", config, "--create")[0] == 0
    code, out, error = command("check", config)
    assert code == 0, out + error


@pytest.mark.parametrize("system", installed_systems(), ids=lambda system: system.name)
def test_members_agree_on_their_federation(system: System, tmp_path: Path, command: Command) -> None:
    """Protects federations from members that count apart: the topic grows between two commands, and with it
    the guess of federation.clients. And from members that refuse each other's messages, because only the
    first was told of a loss or a budget."""
    url, first = bus_with_records(tmp_path.name), tmp_path / "first.toml"
    parties = () if system.name == "pofmkl" else PARTIES[:2]
    shared = shared_keys(find_kind(system.kinds[0]).settings)
    assert bool(shared) == (system.name in ALIKE)
    alike = ("--set", ALIKE[system.name]) if shared else ()
    said = ("--url", url, "--federation", "bikes", *parties, *SAID.get(system.name, ()))
    words = ("--from-topic", "rentals", "--labels-topic", "returns", "--label", "late", *said)
    code, _, error = command("init", first, "--role", system.kinds[0], *words, *alike)
    assert code == 0, error
    option = "--role" if len(system.kinds) > 1 else "--party"
    assert f"the same command with {option}, another file and --like {first}" in " ".join(error.split())
    for number in range(9 * ROWS):
        sample = {"trip": f"m{number}", "km": number % 7, "age": 3, "slope": 0.5}
        MemoryBus.at(url).write([Outgoing("rentals", b"new-%d" % number, json.dumps(sample).encode())])
    for name in system.kinds[1:] or system.kinds:
        for options in ((), words):
            other = tmp_path / f"{name}-{len(options)}.toml"
            more = ("--role", name, "--like", first, *options)
            code, _, error = command("init", other, *more)
            assert code == 0, error
            written = [tomllib.loads(one.read_text()) for one in (first, other)]
            assert written[0]["federation"] == written[1]["federation"]
            assert written[0]["bus"] == written[1]["bus"]
            for section, key in shared:
                there, here = (one.get(section, {}) for one in written)
                assert here.get(key) == there.get(key), (section, key)
    code, _, error = command("init", tmp_path / "x", "--like", first, "--federation", "cars")
    assert (code, "federation.name is 'bikes' there, and you say 'cars'" in error) == (2, True)


def _other_values(value: object, annotation: object) -> list[object]:
    """Other values that a setting may have."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, 2 * value, value / 2, value - 1]
    if isinstance(value, list):
        return [value[:-1]]
    return [one for one in get_args(annotation) if isinstance(one, str) and one != value]


@pytest.mark.parametrize("system", installed_systems(), ids=lambda system: system.name)
def test_what_members_compare_is_marked(system: System, tmp_path: Path, command: Command) -> None:
    """Protects who writes the files of a federation: a setting by which members refuse each other's messages
    is told in the reference, and taken by --like."""
    url, file = bus_with_records(tmp_path.name), tmp_path / "first.toml"
    parties = () if system.name == "pofmkl" else (*PARTIES, "depot")
    words = ("--from-topic", "rentals", "--labels-topic", "returns", "--label", "late", "--url", url)
    said = ("--federation", "bikes", *parties, *SAID.get(system.name, ()))
    assert command("init", file, "--role", system.kinds[0], *words, *said)[0] == 0
    settings = read_configuration(file).settings
    shared, compared = shared_keys(type(settings)), FINGERPRINTS.get(system.name, attrgetter("fingerprint"))
    before, said_alone, content = (
        compared(settings),
        settings.model_dump(exclude_unset=True),
        settings.model_dump(),
    )
    tried = 0
    for section, fields in type(settings).model_fields.items():
        inner = fields.annotation
        if section == "federation" or not isinstance(content[section], dict) or not isinstance(inner, type):
            continue
        for key, field in inner.model_fields.items():
            for value in _other_values(content[section][key], field.annotation):
                changed = said_alone | {section: said_alone.get(section, {}) | {key: value}}
                try:
                    other = type(settings).model_validate(changed)
                except ValueError:
                    continue
                tried += 1
                assert compared(other) == before or (section, key) in shared, (section, key)
    assert tried > 10


@pytest.mark.parametrize("name", sorted({name for name, _ in CASES}))
def test_sections_that_a_kind_needs_are_asked_for(name: str, tmp_path: Path, command: Command) -> None:
    """Protects who gives no labels' topic, and no party: where other keys were to be filled in too, the file
    did not say that the role needs the sections."""
    url, config = bus_with_records(tmp_path.name), tmp_path / "member.toml"
    parties = () if find_system(name).name == "pofmkl" else PARTIES[:2]
    words = ("init", config, "--role", name, "--url", url, "--from-topic", "rentals", "--no-label")
    code, _, error = command(*words, *parties)
    assert code == 0, error
    settings, text = find_kind(name).settings, config.read_text()
    needed = settings.needed_by(name)
    assert {*needed} <= tomllib.loads(text).keys()
    asked = {line.removeprefix("to fill in: ").partition(".")[0] for line in error.splitlines()}
    assert {*needed} - {"samples"} <= asked
    # The option that writes the section is said, too.
    for told in (error, text):
        assert [
            f"say --{one}" in " ".join(told.replace("\n#", "").split()) for one in ("party", "labels-topic")
        ] == [one in needed for one in ("party", "labels")]
