"""Topics that change while a member is away: unread records are deleted, and a topic is deleted and created
again. The loss must be reported.

Each member that reads a user's topic is away in turn, for longer than the topic keeps its records. ``streamfl
inspect`` must report exactly the records that were deleted unread; all others are processed. In the end one
such topic is deleted and created again: its reader stops with exit code 2.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from broker import Broker
from end_txn_proxy import EndTxnProxy
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition
from rich.console import Console
from soak.configuration import all_topics, load_members
from soak.faults import PATIENCE_SECONDS, Killer, NotRecovered
from soak.federation import Federation
from soak.subject import Plan, find_soaked
from streamfl_process import run_streamfl

from streamfl.runtime.kinds import build_channels

__all__ = ["run_with_changed_topics"]

AWAY_SECONDS = 10.0
CONFIGURATION_ERROR = 2


def run_with_changed_topics(name: str, plan: Plan, console: Console | None = None) -> dict[str, Any]:
    """Returns a report for JSON. RuntimeError if the cluster cannot be started."""
    say = console or Console(quiet=True)
    _, system = find_soaked(name)
    wrong: list[str] = []
    deleted: dict[str, int] = {}
    with (
        tempfile.TemporaryDirectory(prefix="streamfl-soak-") as folder,
        EndTxnProxy(plan.nodes) as proxy,
        Broker(nodes=plan.nodes, proxy=proxy) as broker,
        Federation(system, plan, broker, Path(folder)) as federation,
    ):
        try:
            Killer(federation, proxy, 0.0).begin()
            readers = _readers(federation)
            for member, topics in readers.items():
                deleted |= _away(federation, member, topics, wrong)
                say.print(f"{member} was away: {deleted}")
            federation.load.end()
            member, topics = next(iter(readers.items()))
            _made_again(federation, member, topics[0], wrong)
        except NotRecovered as stuck:
            wrong.append(str(stuck))
        written = federation.load.written
    return {
        "system": name,
        "plan": asdict(plan),
        "samples_written": written,
        "deleted": deleted,
        "wrong": wrong,
    }


def _readers(federation: Federation) -> dict[str, list[str]]:
    """By member: the users' topics that it reads."""
    settings = load_members(federation.files)
    users = {topic for topic, spec in all_topics(settings).items() if spec.users}
    inputs = {
        member: [one.topic for one in build_channels(own).inputs.values()] for member, own in settings.items()
    }
    found = {member: [topic for topic in topics if topic in users] for member, topics in inputs.items()}
    return {member: topics for member, topics in found.items() if topics}


def _away(federation: Federation, member: str, topics: list[str], wrong: list[str]) -> dict[str, int]:
    """By topic: the number of records that were deleted while the member was away. Checks its report after
    its return."""
    federation.hold(member)
    time.sleep(AWAY_SECONDS)
    before = _inputs(federation, member)
    gone: Counter[str] = Counter()
    with closing(KafkaAdminClient(bootstrap_servers=federation.broker.address)) as admin:
        for one in before:
            begin = one["read up to"]
            if one["topic"] in topics and begin is not None and one["end"] > begin:
                following = (begin + one["end"] + 1) // 2
                admin.delete_records({TopicPartition(one["topic"], one["partition"]): following})
                gone[one["topic"]] += following - begin
    federation.release(member)
    if not gone:
        wrong.append(f"nothing came for {member} while it was away")

    def caught_up() -> bool:
        waits = [
            one
            for one in _inputs(federation, member)
            if one["topic"] in topics and one["behind"] > federation.plan.rate
        ]
        return not waits and federation.ready(member)

    _wait(federation, caught_up, f"{member} is up to date again")
    told: Counter[str] = Counter()
    for one in _inputs(federation, member):
        told[one["topic"]] += one["deleted unread"]
    if +told != gone:
        wrong.append(f"{member}: {dict(gone)} were deleted before they were read, inspect says {dict(told)}")
    said = federation.log.read_text(errors="replace")
    for topic in gone:
        if not any("deleted before they were read" in line and topic in line for line in said.splitlines()):
            wrong.append(f"{member}: the log does not say that records of {topic} were deleted")
    return dict(gone)


def _made_again(federation: Federation, member: str, topic: str, wrong: list[str]) -> None:
    """If a topic is deleted and created again while its reader is away, the reader stops and says so."""
    federation.hold(member)
    spec = all_topics(load_members(federation.files))[topic]
    with closing(KafkaAdminClient(bootstrap_servers=federation.broker.address)) as admin:
        admin.delete_topics([topic])
        _wait(federation, lambda: topic not in admin.list_topics(), f"{topic} is deleted")
    path = federation.files[member]
    run_streamfl("topics", path, "--create-inputs", "--partitions", spec.partitions, check=True)
    ended = run_streamfl("run", path, timeout=PATIENCE_SECONDS)
    lines = (ended.stdout + ended.stderr).splitlines()
    told = [line for line in lines if "was deleted and created again" in line and topic in line]
    if ended.returncode != CONFIGURATION_ERROR or not told:
        wrong.append(
            f"{topic} was made again, and {member} ends with {ended.returncode}: {ended.stderr[-2000:]}"
        )


def _inputs(federation: Federation, member: str) -> list[dict[str, Any]]:
    """The member's input positions."""
    ended = run_streamfl("inspect", federation.files[member], "--format", "json", check=True)
    found: list[dict[str, Any]] = json.loads(ended.stdout)["inputs"]
    return found


def _wait(federation: Federation, true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise NotRecovered(
                f"{what}: not in {PATIENCE_SECONDS:g} s\n{federation.log.read_text(errors='replace')[-5000:]}"
            )
        time.sleep(1.0)
