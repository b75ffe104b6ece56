"""DP Frank-Wolfe under the soak: two parties and a server, a window of labelled entities from time to time,
and predictions."""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from dp_frank_wolfe.proof.observed_messages import messages_of, names_by_window
from soak.subject import FEDERATION, Left, Member, Plan, SoakedSystem, Verdict

from streamfl.contract.seeding import rng_for
from streamfl.dp_frank_wolfe.messages import Entities, Message, Partial, read_content
from streamfl.privacy.anchor import Anchor
from streamfl.runtime.bus import Outgoing

__all__ = ["SOAK"]

PARTIES = ("clinic", "insurer")
SERVER = "server"
LABELS = "outcomes"
ROWS, ITERATIONS = 40, 4
FEATURES = ("a", "b", "c")
BOUND = 4.0
# So many samples after the last one a window's entities begin to be labelled: some models come to each
# campaign.
EVERY = 3_000
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
    atexit.register(shutil.rmtree, found, ignore_errors=True)
    for party in PARTIES:
        (found / f"{party}.secret").touch(0o600)
        (found / f"{party}.secret").write_bytes(hashlib.sha512(f"{plan.seed} {party}".encode()).digest())
        Anchor.create(found / f"{party}.ledger", f"ledger-{party}", party)
    return found


def first(plan: Plan) -> list[Outgoing]:
    """The entities of the first window: before there is a model nobody is predicted."""
    return [record for number in range(ROWS) for record in _entity(plan, b"f%d" % number, is_labelled=True)]


def begun(left: Left) -> bool:
    """Whether every party has a model."""
    states = [left.latest(f"{FEDERATION}.{party}.state") for party in PARTIES]
    return all(any(key.startswith(b"model/") for _, key in state) for state in states)


def records(plan: Plan, number: int) -> list[Outgoing]:
    """What the parties see of an entity, and of some the label."""
    return _entity(plan, b"e%d" % number, is_labelled=number % EVERY < ROWS)


def _entity(plan: Plan, name: bytes, is_labelled: bool) -> list[Outgoing]:
    inputs = rng_for(plan.seed, "soak", name.decode()).normal(size=(len(PARTIES), 3))
    found = []
    for party, own in zip(PARTIES, inputs.tolist(), strict=True):
        found.append(
            Outgoing(f"samples-{party}", name, json.dumps(dict(zip(FEATURES, own, strict=True))).encode())
        )
    if is_labelled:
        found.append(Outgoing(LABELS, name, json.dumps({"y": float(inputs[:, 0].sum())}).encode()))
    return found


def members(plan: Plan) -> dict[str, Member]:
    """Each has one partition, which can move where there are two processes on one machine with the ledger
    file."""
    found = {}
    for party in (*PARTIES, ""):
        ledger = ""
        if party:
            ledger = f'ledger = "ledger-{party}"\nledger_file = "{folder(plan) / party}.ledger"\n'
            ledger += f'secret_file = "{folder(plan) / party}.secret"'
        kind = "party" if party else "server"
        given = {"rows": ROWS, "iterations": ITERATIONS, "ledger": ledger}
        text = SECTIONS.format(name=FEDERATION, seed=plan.seed, kind=kind, estimator=plan.mode, **given)
        found[party or SERVER] = Member(
            text + (PARTY.format(party=party) if party else ""), 2 if party == PARTIES[0] else 1
        )
    return found


def predicted(prediction: Mapping[str, Any]) -> str:
    """The entity's name."""
    return str(prediction["entity"])


def check(verdict: Verdict, left: Left) -> None:
    """Every entity predicted once; windows one after another, each with one fit, of entities that are charged
    for it once."""
    early = {(record.key or b"").decode() for record in first(left.plan)}
    entities = {(record.key or b"").decode() for record in left.read(f"samples-{PARTIES[0]}")} - early
    said = [json.loads(record.value or b"") for record in left.of("predictions")]
    lost = entities - {predicted(one) for one in said}
    verdict.samples, verdict.lost = len(entities), len(lost)
    found = Counter(predicted(one) for one in said)
    verdict.doubled = sum(count - 1 for count in found.values())
    verdict.require(not lost, f"{len(lost)} entities without a prediction: {sorted(lost)[:3]}")
    verdict.require(not verdict.doubled, f"{verdict.doubled} predictions too many: {found.most_common(3)}")
    windows: list[list[str]] = []
    models_of: dict[str, dict[str, int]] = {}
    for party in PARTIES:
        asks, releases = (messages_of(left, f"{FEDERATION}.{party}.{kind}") for kind in ("asks", "releases"))
        _check_once(verdict, party, asks)
        _check_once(verdict, party, releases)
        manifests = names_by_window(dict.fromkeys(asks), releases, ROWS)
        verdict.require(
            list(manifests) == list(range(1, len(manifests) + 1)), f"{party}: windows out of order"
        )
        names = list(manifests.values())
        verdict.require(not windows or names == windows, f"{party}: other windows than another party")
        windows = names
        models = {one.window for one in asks if one.kind == "model"}
        verdict.require(models == manifests.keys(), f"{party}: models of windows {sorted(models)}")
        announced = {
            name
            for one in releases
            if one.kind == "entities"
            for name in read_content(one.content, Entities).names
        }
        _check_ledger(verdict, left, party, names, releases)
        models_of[party] = _check_partials(verdict, party, said, releases)
        verdict.require(
            len(announced) - ROWS * len(names) < ROWS,
            f"{party}: {len(announced)} announced, {len(names)} windows",
        )
    in_windows = Counter(name for names in windows for name in names)
    verdict.require(
        all(count == 1 for count in in_windows.values()), f"in two windows: {in_windows.most_common(3)}"
    )
    verdict.require(bool(windows), "no window was filled")
    _check_values(verdict, left, said)
    apart = sum(models_of[PARTIES[0]].get(name) != model for name, model in models_of[PARTIES[1]].items())
    verdict.counts |= {"windows": len(windows), "predicted_between_two_models": apart}


def _check_once(verdict: Verdict, party: str, messages: list[Message]) -> None:
    """In one place one message is said once. Nobody is silent for so long that all would be asked again."""
    places = Counter((one.kind, one.window, one.iteration) for one in messages)
    twice = [place for place, count in places.items() if count > 1]
    verdict.require(not twice, f"{party}: said twice: {twice[:3]}")


def _check_partials(
    verdict: Verdict, party: str, said: list[dict[str, Any]], releases: list[Message]
) -> dict[str, int]:
    """Each prediction has a part of the party, and parts are counted without a gap. By entity, the party's
    model at that time."""
    numbers = [one.iteration for one in releases if one.kind == "partial"]
    verdict.require(numbers == list(range(1, len(numbers) + 1)), f"{party}: parts out of order")
    parts = [read_content(one.content, Partial) for one in releases if one.kind == "partial"]
    told = Counter((one.entity, one.model) for one in parts)
    told += Counter((one.entity, one.model - 1) for one in parts if one.before is not None)
    alone = Counter((predicted(one), one["model"]) for one in said) - told
    verdict.require(not alone, f"{party}: predictions without a part of it: {alone.most_common(3)}")
    return {one.entity: one.model for one in parts}


def _check_values(verdict: Verdict, left: Left, said: list[dict[str, Any]]) -> None:
    """Each prediction is of one model, and of what the parties saw of that entity."""
    weights: dict[tuple[str, int], dict[int, float]] = {}
    intercepts: dict[int, float] = {}
    for record in left.of("model"):
        model = json.loads(record.value or b"")
        weights[model["party"], model["version"]] = dict(zip(model["columns"], model["weights"], strict=True))
        intercepts[model["version"]] = model.get("intercept", 0.0)
    rows = {
        (party, (record.key or b"").decode()): json.loads(record.value or b"")
        for party in PARTIES
        for record in left.read(f"samples-{party}")
    }
    for one in said:
        expected = BOUND * intercepts[one["model"]]
        for party in PARTIES:
            row = [min(1.0, max(-1.0, rows[party, predicted(one)][name] / BOUND)) for name in FEATURES]
            expected += BOUND * sum(
                weight * row[column] for column, weight in weights[party, one["model"]].items()
            )
        if not math.isclose(one["prediction"], expected, abs_tol=1e-3):
            verdict.require(False, f"{one} is not of its model, which gives {expected}")
            return


def _check_ledger(
    verdict: Verdict, left: Left, party: str, windows: list[list[str]], releases: list[Message]
) -> None:
    """Whoever is in a window was charged once, nobody else was, and the file has as many links as there were
    releases."""
    charged = {
        key.partition(b"/")[2].decode(): msgspec.msgpack.decode(value)
        for (_, key), value in left.latest(f"ledger-{party}.ledger").items()
        if key.startswith(b"spent/")
    }
    names = {name for own in windows for name in own}
    verdict.require(
        charged.keys() == names, f"{party}: {len(charged)} were charged, {len(names)} are in windows"
    )
    verdict.require(all(times == 1 for _, times in charged.values()), f"{party}: somebody was charged twice")
    links = {one.link for one in releases if one.kind in RELEASES}
    noted = len(Anchor.open(folder(left.plan) / f"{party}.ledger", f"ledger-{party}", party).links())
    verdict.require(links == set(range(1, noted + 1)), f"{party}: {len(links)} releases, {noted} are noted")


SOAK = SoakedSystem(
    ("frank-wolfe", "two-round"),
    members,
    records,
    predicted,
    check,
    first=first,
    begun=begun,
    # 0.1 does not know a window that was frozen under this release.
    way_back=False,
)
