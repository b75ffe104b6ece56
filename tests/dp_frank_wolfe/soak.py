"""DP Frank-Wolfe under the soak: two parties and a server, a window of labelled entities from time to time, and predictions."""

from __future__ import annotations

import functools
import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from soak.subject import FEDERATION, Left, Member, Plan, SoakedSystem, Verdict

from streamfl.dp_frank_wolfe.lab.said import messages_of
from streamfl.dp_frank_wolfe.messages import Entities, Manifest, Message, Partial, read_content
from streamfl.privacy.anchor import Anchor
from streamfl.runtime.bus import Outgoing
from streamfl.seeding import rng_for

__all__ = ["SOAK"]

PARTIES = ("clinic", "insurer")
SERVER = "server"
LABELS = "outcomes"
ROWS, ITERATIONS = 40, 4
# So many samples after the last one a window's entities begin to be labelled.
EVERY = 3_000
# An entity's columns come once more after so many samples, each: before the first model nobody is predicted, and while parties
# change to another one, at different moments, some are not. They are other numbers each time, so that no two predictions are the
# same.
AGAIN = (120, 600, 2_000)
SECTIONS = """
[federation]
name = "{name}"
seed = {seed}
parties = ["clinic", "insurer"]
columns = {{clinic = 3, insurer = 3}}
[role]
kind = "dp-frank-wolfe-{kind}"
[window]
rows = {rows}
limit = 100000
patience_seconds = 600
[bounds]
bound = 4
label_bound = 4
[privacy]
epsilon = 8
delta = 1e-4
{ledger}
[learning]
estimator = "{estimator}"
columns = 4
iterations = {iterations}
sketch_rows = 16
[serving]
mode = "exact"
"""
PARTY = """
[party]
name = "{party}"
[samples]
topic = "samples-{party}"
features = ["a", "b", "c"]
[labels]
topic = "outcomes"
label = "y"
"""
RELEASES = ("frozen", "answers", "chosen", "products")


@functools.cache
def folder(plan: Plan) -> Path:
    """Secrets and ledger files of a plan: made once in this process, which starts all others."""
    found = Path(tempfile.mkdtemp(prefix="streamfl-soak-"))
    for party in PARTIES:
        (found / f"{party}.secret").touch(0o600)
        (found / f"{party}.secret").write_bytes(hashlib.sha512(f"{plan.seed} {party}".encode()).digest())
        Anchor.create(found / f"{party}.ledger", f"ledger-{party}", party)
    return found


def records(plan: Plan, number: int) -> list[Outgoing]:
    """What the parties see of an entity, of some the label, and once more what they see of earlier ones."""
    found = []
    for later in (0, *(later for later in AGAIN if number >= later)):
        place = number - later
        inputs = rng_for(plan.seed, "soak", place, later).normal(size=(len(PARTIES), 3))
        for party, own in zip(PARTIES, inputs.tolist(), strict=True):
            content = json.dumps(dict(zip("abc", own, strict=True))).encode()
            found.append(Outgoing(f"samples-{party}", b"e%d" % place, content))
        if not later and number % EVERY < ROWS:
            found.append(Outgoing(LABELS, b"e%d" % place, json.dumps({"y": float(inputs[:, 0].sum())}).encode()))
    return found


def members(plan: Plan) -> dict[str, Member]:
    """Each has one partition, which can move where there are two processes on one machine with the ledger file."""
    found = {}
    for party in (*PARTIES, ""):
        ledger = ""
        if party:
            ledger = f'ledger = "ledger-{party}"\nledger_file = "{folder(plan) / party}.ledger"\n'
            ledger += f'secret_file = "{folder(plan) / party}.secret"'
        kind, given = "party" if party else "server", {"rows": ROWS, "iterations": ITERATIONS, "ledger": ledger}
        text = SECTIONS.format(name=FEDERATION, seed=plan.seed, kind=kind, estimator=plan.mode, **given)
        found[party or SERVER] = Member(text + (PARTY.format(party=party) if party else ""), 2 if party == PARTIES[0] else 1)
    return found


def predicted(prediction: Mapping[str, Any]) -> str:
    """The entity's name."""
    return str(prediction["entity"])


def check(verdict: Verdict, left: Left) -> None:
    """Every entity predicted; windows one after another, each with one fit, of entities that are charged for it once."""
    entities = {(record.key or b"").decode() for record in left.read(f"samples-{PARTIES[0]}")}
    said = [json.loads(record.value or b"") for record in left.of("predictions")]
    lost = entities - {predicted(one) for one in said}
    verdict.samples, verdict.lost = len(entities), len(lost)
    found = Counter((predicted(one), one["model"], one["prediction"]) for one in said)
    verdict.doubled = sum(count - 1 for count in found.values())
    verdict.require(not lost, f"{len(lost)} entities without a prediction: {sorted(lost)[:3]}")
    verdict.require(not verdict.doubled, f"{verdict.doubled} predictions too many: {found.most_common(3)}")
    windows: list[list[str]] = []
    for party in PARTIES:
        asks, releases = (messages_of(left, f"{FEDERATION}.{party}.{kind}") for kind in ("asks", "releases"))
        _check_once(verdict, party, asks)
        _check_once(verdict, party, releases)
        manifests = [one for one in dict.fromkeys(asks) if one.kind == "manifest"]
        verdict.require([one.window for one in manifests] == list(range(1, len(manifests) + 1)), f"{party}: windows out of order")
        names = [read_content(one.content, Manifest).names for one in manifests]
        verdict.require(not windows or names == windows, f"{party}: other windows than another party")
        windows = names
        models = {one.window for one in asks if one.kind == "model"}
        verdict.require(models == {one.window for one in manifests}, f"{party}: models of windows {sorted(models)}")
        announced = {name for one in releases if one.kind == "entities" for name in read_content(one.content, Entities).names}
        _check_ledger(verdict, left, party, names, releases)
        _check_partials(verdict, party, said, releases)
        verdict.require(len(announced) - ROWS * len(names) < ROWS, f"{party}: {len(announced)} announced, {len(names)} windows")
    in_windows = Counter(name for names in windows for name in names)
    verdict.require(all(count == 1 for count in in_windows.values()), f"in two windows: {in_windows.most_common(3)}")
    verdict.require(bool(windows), "no window was filled")
    verdict.counts |= {"windows": len(windows)}


def _check_once(verdict: Verdict, party: str, messages: list[Message]) -> None:
    """In one place one message is said once. Nobody is silent for so long that all would be asked again."""
    places = Counter((one.kind, one.window, one.iteration) for one in messages)
    twice = [place for place, count in places.items() if count > 1]
    verdict.require(not twice, f"{party}: said twice: {twice[:3]}")


def _check_partials(verdict: Verdict, party: str, said: list[dict[str, Any]], releases: list[Message]) -> None:
    """Each prediction has a part of the party, and parts are counted without a gap."""
    numbers = [one.iteration for one in releases if one.kind == "partial"]
    verdict.require(numbers == list(range(1, len(numbers) + 1)), f"{party}: parts out of order")
    parts = [read_content(one.content, Partial) for one in releases if one.kind == "partial"]
    alone = Counter((predicted(one), one["model"]) for one in said) - Counter((one.entity, one.model) for one in parts)
    verdict.require(not alone, f"{party}: predictions without a part of it: {alone.most_common(3)}")


def _check_ledger(verdict: Verdict, left: Left, party: str, windows: list[list[str]], releases: list[Message]) -> None:
    """Whoever is in a window was charged once, nobody else was, and the file has as many links as there were releases."""
    charged = {
        key.partition(b"/")[2].decode(): msgspec.msgpack.decode(value)
        for (_, key), value in left.latest(f"ledger-{party}.ledger").items()
        if key.startswith(b"spent/")
    }
    names = {name for own in windows for name in own}
    verdict.require(charged.keys() == names, f"{party}: {len(charged)} were charged, {len(names)} are in windows")
    verdict.require(all(times == 1 for _, times in charged.values()), f"{party}: somebody was charged twice")
    links = {one.link for one in releases if one.kind in RELEASES}
    noted = len(Anchor.open(folder(left.plan) / f"{party}.ledger", f"ledger-{party}", party).links())
    verdict.require(links == set(range(1, noted + 1)), f"{party}: {len(links)} releases, {noted} are noted")


SOAK = SoakedSystem(("frank-wolfe", "two-round"), members, records, predicted, check)
