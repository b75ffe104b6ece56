"""The documents: what they say about keys, reasons and files has to be what the code has."""

from __future__ import annotations

import doctest
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from streamfl.cli import app, output
from streamfl.entry import SYSTEM
from streamfl.pofmkl.config import PofmklSettings
from streamfl.runtime.kinds import find_kind
from streamfl.settings import RoleSettings
from streamfl.vafl.config import VaflSettings

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def sections(settings: type[RoleSettings]) -> dict[str, type[BaseModel]]:
    """Every section of a configuration file, by name."""
    found: dict[str, type[BaseModel]] = {}
    for name, field in settings.model_fields.items():
        for member in get_args(field.annotation) or (field.annotation,):
            if isinstance(member, type) and issubclass(member, BaseModel):
                found[name] = member
    return found


def expected_keys(sections: Mapping[str, type[BaseModel]]) -> dict[str, str]:
    """Every key of these sections and its default, as the document writes it."""
    return {f"{name}.{key}": default_of(section, key) for name, section in sections.items() for key in section.model_fields}


def default_of(section: type[BaseModel], key: str) -> str:
    """A key's default as the document writes it."""
    field = section.model_fields[key]
    value: Any = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "*required*"
    if value is None:
        return "*none*"
    return f"`{json.dumps(value)}`"


def test_configuration_document_has_every_key_and_its_default() -> None:
    """Protects the reader's trust: a key left out cannot be found, and a default that changed misleads silently."""
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    clients, heading, parties = text.partition("\n## Vertical federations\n")
    assert heading
    shared = sections(PofmklSettings)
    own = {name: section for name, section in sections(VaflSettings).items() if shared.get(name) is not section}
    for part, known in ((clients, shared), (parties, own)):
        rows = re.findall(r"^\| `([a-z]+\.[a-z_]+)` \| (.*?) \|", part, re.MULTILINE)
        assert len(rows) == len(dict(rows))
        assert dict(rows) == expected_keys(known)


def test_rejection_reasons_are_documented() -> None:
    """Protects whoever reads a dead letter: its reason has to be in the list that explains them."""
    text = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")
    raised = {
        reason
        for path in (ROOT / "streamfl").rglob("*.py")
        for reason in re.findall(r"PeerError\(\s*\"(\w+)\"", path.read_text(encoding="utf-8"))
    }
    assert raised
    for reason in raised:
        assert f"| `{reason}` |" in text, reason


def test_exit_codes_are_documented() -> None:
    """Protects supervisors: restart rules are written from the document."""
    text = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    own = {output.CONFIGURATION, output.BUS_UNAVAILABLE, output.CHECK_FAILED, output.DATA, output.UNREADABLE, output.STALLED}
    used = {*own, SYSTEM}
    assert documented == {0, *used}


def test_commands_in_the_documents_exist() -> None:
    """Protects whoever copies a command: its name is one of streamfl's."""
    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    named = {
        command
        for path in DOCUMENTS
        for command in re.findall(r"(?:^    |`)streamfl ([a-z-]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert named
    assert named <= known


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    """Protects the reader from dead ends: files that are linked exist, and so do the headings within them."""
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        linked = (path.parent / name).resolve() if name else path
        assert linked.exists(), target
        if linked.suffix != ".md":
            continue
        headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, target


def test_tests_that_documents_name_exist() -> None:
    """Protects whoever looks up what shows a claim: a test that was renamed or dropped would leave it without proof."""
    named = {name for path in DOCUMENTS for name in re.findall(r"`(test_\w+)`", path.read_text())}
    sources = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "streamfl" / "testing").glob("*.py")]
    defined = {name for path in sources for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert len(named) > 20
    assert not named - defined


def test_configurations_in_the_readme_are_valid() -> None:
    """Protects the first try: what is copied from the README has to load, and client and server have to agree."""
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    settings = [PofmklSettings(**tomllib.loads(block)) for block in blocks]
    assert sorted(item.role.kind for item in settings) == ["pofmkl-client", "pofmkl-server"]
    assert settings[0].federation == settings[1].federation
    assert settings[0].learning == settings[1].learning
    assert settings[0].kernels == settings[1].kernels


def test_configurations_of_the_vertical_tutorial_are_valid() -> None:
    """Protects two organisations' first try: both parties' files and the coordinator's load, and agree where they have to."""
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "vertical.md").read_text(encoding="utf-8"), re.DOTALL)
    settings = [VaflSettings(**tomllib.loads(block)) for block in blocks]
    assert [item.role.kind for item in settings] == ["vafl-party", "vafl-party", "vafl-coordinator"]
    assert [item.party.name for item in settings if item.party is not None] == settings[0].federation.parties
    assert settings[0].federation == settings[1].federation == settings[2].federation


def test_metrics_of_vertical_federations_are_documented(tmp_path: Path) -> None:
    """Protects dashboards: what a party or the coordinator measures is in the document, under its type, and nothing else is."""
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    own = text.partition("\n## Vertical federations\n")[2].partition("\n## ")[0]
    written = dict(re.findall(r"^\| `streamfl_(\w+)` \| (\w+) \|", own, re.MULTILINE))
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(32)))
    secret.chmod(0o600)
    noise = {"embedding_norm": 1.0, "embedding_noise": 1.0, "secret_file": str(secret)}
    measured: dict[str, str] = {}
    for block in re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "vertical.md").read_text(encoding="utf-8"), re.DOTALL):
        for privacy in ({}, noise, {**noise, "gradient_norm": 1.0, "gradient_noise": 1.0, "budget_mu": 1.0}):
            settings = VaflSettings(**{**tomllib.loads(block), "privacy": privacy})
            role = find_kind(settings.role.kind).build(settings)
            measured.update({f"{one.name}{'_total' * (one.kind == 'counter')}": one.kind for one in role.measure()})
    # These need a label of an entity that was predicted.
    measured.update(loss_windowed="gauge", mse_windowed="gauge", accuracy="gauge")
    assert written == measured


def test_the_example_in_the_readme_runs() -> None:
    """Protects the first try in Python: what the README shows is what happens."""
    outcome = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert outcome.attempted > 0
    assert outcome.failed == 0
