"""The settings files of a federation's members, and the topics that they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from identities import Keys
from soak.subject import FEDERATION, PARTITIONS, Plan, SoakedSystem

from streamfl.configuration.settings import RoleSettings, load_kind, load_settings
from streamfl.contract.channels import TopicSpec
from streamfl.runtime.kinds import find_kind

__all__ = ["SESSION_SECONDS", "TRANSACTION_SECONDS", "all_topics", "load_members", "write_configuration"]

SESSION_SECONDS = 6.0
TRANSACTION_SECONDS = 10.0

BUS = """
[bus]
url = "{url}"
connect_timeout_seconds = 10
[bus.options]
{options}
"""
# The shortest session timeout that a broker allows by default, and quick detection of an outage.
OPTIONS = {
    "session_timeout_ms": round(SESSION_SECONDS * 1000),
    "transaction_timeout_ms": round(TRANSACTION_SECONDS * 1000),
    "request_timeout_ms": 5_000,
    "delivery_timeout_ms": 10_000,
}
SPELLINGS = {
    "session_timeout_ms": "session.timeout.ms",
    "transaction_timeout_ms": "transaction.timeout.ms",
    "request_timeout_ms": "socket.timeout.ms",
    "delivery_timeout_ms": "message.timeout.ms",
}


def write_configuration(system: SoakedSystem, plan: Plan, url: str, folder: Path) -> dict[str, Path]:
    """Writes every member's settings file. Returns the paths by member."""
    spelled = {
        name if plan.scheme == "kafka" else f'"{SPELLINGS[name]}"': value for name, value in OPTIONS.items()
    }
    bus = BUS.format(url=url, options="\n".join(f"{name} = {value}" for name, value in spelled.items()))
    files = {}
    for name, member in system.members(plan).items():
        files[name] = folder / f"{name}.toml"
        files[name].write_text(member.sections + bus)
    if plan.keys:
        give_keys(files, Keys(folder, FEDERATION))
    return files


def give_keys(files: Mapping[str, Path], keys: Keys) -> None:
    """A key for every member, which may speak for its party, or for every client."""
    for name, settings in load_members(files).items():
        party = getattr(settings, "party", None)
        sections = (
            files[name].read_text().replace("[federation]\n", f'[federation]\nmembers = "{keys.file}"\n')
        )
        files[name].write_text(f'{sections}\n[identity]\nkey_file = "{keys.key_file(name)}"\n')
        keys.add(name, settings.role.kind, speaks_for=("*",) if party is None else (party.name,))


def load_members(files: Mapping[str, Path]) -> dict[str, RoleSettings]:
    """The members' settings, as a worker reads them."""
    return {name: load_settings(path, find_kind(load_kind(path)).settings) for name, path in files.items()}


def all_topics(settings: Mapping[str, RoleSettings]) -> dict[str, TopicSpec]:
    """The topics of all members by name, with their partitions."""
    specs = [spec for one in settings.values() for spec in find_kind(one.role.kind).topics(one)]
    return {spec.name: replace(spec, partitions=spec.partitions or PARTITIONS) for spec in specs}
