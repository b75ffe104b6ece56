"""``streamfl ledger``: a party's ledger of what was released of its source data, and the file that it is
checked against."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import typer

from streamfl.configuration.settings import load_kind, load_settings
from streamfl.contract.role import BadRecord, ConfigurationError
from streamfl.dp_frank_wolfe.config import PARTY, DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.party.role import PartyTask
from streamfl.dp_frank_wolfe.privacy.budget import SPARE
from streamfl.dp_frank_wolfe.privacy.ledger import FITS, PREDICTIONS, PartyLedger
from streamfl.dp_frank_wolfe.roles import ROLES
from streamfl.privacy.anchor import Anchor
from streamfl.privacy.zcdp import epsilon_of
from streamfl.runtime.bus import Bus, BusUnavailable, Unreadable, connect
from streamfl.runtime.checksum import is_damaged
from streamfl.runtime.remembered_positions import POSITION_KEY
from streamfl.simulation.system_tools import Standing, what_learning_waits_for
from streamfl.terminal.console import (
    ConfigArgument,
    FormatOption,
    OutputFormat,
    print_json,
    print_table,
    print_text,
    say,
)
from streamfl.terminal.exit_codes import ExitCode

__all__ = ["ledger", "party_standing"]

LANES = {"fits": FITS, "predictions": PREDICTIONS}
# Releases that a party may have noted and not committed. If it was killed in between, it does the work again.
AHEAD = 1
WHAT_TO_DO = "do what docs/dp-frank-wolfe-privacy.md#when-the-ledger-refuses says of this text"

ledger = typer.Typer(
    name="ledger",
    help="A DP Frank-Wolfe party's ledger: begin it, and see what was spent and whether topic and file "
    "agree.",
    no_args_is_help=True,
)


@dataclass(frozen=True)
class _Topic:
    """Content of the ledger's topic.

    entities: how many something was released of.
    largest_rho: largest cost of an entity; None: something had no noise.
    budget_rho: what no entity may exceed at this party.
    epsilon: of the entity with the largest cost, if every party has released as much of its share.
    releases: by chain.
    disagreement: why a party would refuse; None: topic and file agree.
    """

    name: str
    entities: int
    largest_rho: float | None
    budget_rho: float | None
    epsilon: float | None
    releases: dict[str, int]
    disagreement: str | None


@ledger.command()
def init(config: ConfigArgument) -> None:
    """Make the file in which each release is noted before it is sent, and print its identity. A file is never
    overwritten."""
    _, path, name, party = _settings(config)
    print_text(Anchor.create(path, name, party).identity.hex())
    say(
        f"made {path}: keep it on a disk of this machine that nobody puts back to an earlier time\nIt is "
        f"right only if nothing was ever released of these data. If something was, under the ledger {name!r} "
        "or another, delete this file, and put back the one that was there."
    )


@ledger.command()
def show(config: ConfigArgument, format: FormatOption = OutputFormat.TABLE) -> None:
    """Show how far a ledger has come, what was spent, and whether its topic and its file agree: exit code 4
    if they do not."""
    settings, path, name, party = _settings(config)
    anchor = Anchor.open(path, name, party)
    topic, failure = None, None
    role: Any = ROLES[PARTY].build(settings)
    role.open(0)
    party_task: PartyTask = role.task(0)
    try:
        options = {"connect_timeout_seconds": settings.bus.connect_timeout_seconds, **settings.bus.options}
        with closing(connect(settings.bus.url, options)) as bus:
            # Read before the file: a running party notes a release in the file first.
            topic = _topic(settings, bus, anchor, party_task.ledger)
    except (BusUnavailable, Unreadable, ConfigurationError) as error:
        failure = error
    links = {lane: anchor.links(number) for lane, number in LANES.items()}
    heads = {
        lane: _shown(found[-1], party_task.given.secret) if found else None for lane, found in links.items()
    }
    counts = {lane: len(found) for lane, found in links.items()}
    if format is OutputFormat.JSON:
        shown = None if topic is None else {**asdict(topic), "agrees": topic.disagreement is None}
        print_json(
            {
                "ledger": name, "party": party, "file": str(path), "identity": anchor.identity.hex(),
                "releases": counts,
                "heads": heads, "topic": shown,
            }
        )  # fmt: skip
    else:
        rows = [("identity", anchor.identity.hex())]
        rows += [
            (f"releases for {lane}, by the file", f"{counts[lane]}, head {heads[lane] or 'none'}")
            for lane in LANES
        ]
        print_table(
            f"Ledger {name} of {party}, held to {path}",
            ("what", "found"),
            rows + ([] if topic is None else _rows(topic)),
        )
    if failure is not None:
        raise failure
    if topic is not None and topic.disagreement is not None:
        say(f"error: {topic.disagreement}")
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _settings(config: Path) -> tuple[DPFrankWolfeSettings, Path, str, str]:
    """A party's settings, its ledger file's path, the ledger's name and the party's name."""
    if (kind := load_kind(config)) != PARTY:
        raise ConfigurationError(f"{config}: role.kind = {kind!r} has no ledger: a {PARTY} has one")
    settings = load_settings(config, DPFrankWolfeSettings)
    name, path = settings.privacy.ledger, settings.privacy.ledger_file
    for key, value in (("ledger", name), ("ledger_file", path)):
        if value is None:
            raise ConfigurationError(
                f"{config}: privacy.{key} is missing: it says which ledger this is, and where its file lies"
            )
    return settings, Path(str(path)), str(name), settings.required_party()


def _shown(link: bytes, secret: bytes) -> str:
    """A link's keyed hash, for people to compare. A link depends on rows: without the key, anybody could test
    guesses of rows."""
    return hashlib.blake2b(link, key=hashlib.sha256(secret).digest(), digest_size=16).hexdigest()


def party_standing(
    settings: DPFrankWolfeSettings, bus: Bus, unread: Mapping[str, int], role: Any | None
) -> Sequence[Standing]:
    """What keeps a party's ledger from releasing anything. role: None: nothing is remembered."""
    path, name = settings.privacy.ledger_file, settings.privacy.ledger
    waits = list(what_learning_waits_for(settings, bus, unread, role))
    if role is None or path is None or name is None:
        return waits
    fresh: Any = ROLES[PARTY].build(settings)
    fresh.open(0)
    anchor = Anchor.open(path, name, settings.required_party())
    # The role was restored before the ledger's topic is read again: a running party's ledger is as far.
    why = _topic(settings, bus, anchor, fresh.task(0).ledger, role.task(0).progress.link).disagreement
    return waits if why is None else [*waits, Standing("ledger", why, WHAT_TO_DO, fails=True)]


def _topic(
    settings: DPFrankWolfeSettings, bus: Bus, anchor: Anchor, own: PartyLedger, link: int = 0
) -> _Topic:
    """What is in the ledger's topic, and whether the file has come as far.

    link: of the party's latest release for a fit, as its state has it."""
    topic, url = f"{anchor.ledger}.ledger", settings.bus.url
    # Read before the topic: all that a running party noted by now, but for its latest release, is committed
    # when the topic is read.
    noted = len(anchor.links(FITS))
    found = bus.describe([topic]).get(topic)
    if found is None:
        raise ConfigurationError(
            f"there is no topic {topic} on {url}: make it with streamfl topics, or put it back"
        )
    if found.error is not None:
        raise ConfigurationError(f"topic {topic}: {found.error}")
    latest = {record.key or b"": record for record in bus.read(topic)}
    disagreement = None
    for key, record in latest.items():
        if record.value is None or key.startswith(POSITION_KEY):
            continue
        try:
            known = not is_damaged(record)
            if known:
                own.parts.restore(key, record.value)
        except (BadRecord, ValueError, msgspec.DecodeError):
            known = False
        if not known:
            disagreement = (
                f"topic {topic}, key {key!r}: damaged, or not of a ledger; put back a copy of the topic"
            )
    if disagreement is None:
        own.look(link)
        disagreement = own.trouble
    for lane in LANES.values():
        compared = anchor.examine(own.number(lane), own.head(lane), lane)
        disagreement = disagreement or (compared if isinstance(compared, str) else None)
    if disagreement is None and noted > own.number(FITS) + AHEAD:
        disagreement = (
            f"topic {topic} has {own.number(FITS)} releases for fits, and the file {noted}: the topic was "
            "deleted or put back, or is another cluster's. Put back the newest one"
        )
    public, largest = Public(settings), own.largest
    epsilon = epsilon_of(largest / public.share(anchor.party), settings.privacy.delta * (1 - SPARE))
    return _Topic(
        topic,
        len(own.spend),
        _finite(largest),
        _finite(public.party_cost(anchor.party)),
        _finite(epsilon),
        {lane: own.number(number) for lane, number in LANES.items()},
        disagreement,
    )


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _rows(topic: _Topic) -> list[tuple[str, str]]:
    budget = "no limit" if topic.budget_rho is None else f"{topic.budget_rho:.6g}"
    largest = "without noise, which no budget covers"
    if topic.largest_rho is not None:
        epsilon = f"epsilon {topic.epsilon:.4g}, if every party has used as much of its share"
        largest = f"cost {topic.largest_rho:.6g} of {budget}: {epsilon}"
    return [
        *((f"releases for {lane}, by {topic.name}", str(topic.releases[lane])) for lane in LANES),
        ("entities of which something was released", str(topic.entities)),
        ("released of the entity with most", largest),
        ("topic and file", "agree" if topic.disagreement is None else topic.disagreement),
    ]
