"""Deals a table's columns to parties, and sets their delays: the meaning of options such as ``--split`` and
``--delays``."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import numpy as np
import typer

from streamfl.contract.role import ConfigurationError

__all__ = [
    "LONGEST_DELAY",
    "TEST_FRACTION",
    "Delay",
    "DelayDistribution",
    "DelayDistributionOption",
    "DelaysOption",
    "EpochsOption",
    "LabelDelayOption",
    "NetworkDelayOption",
    "OnlineOption",
    "SplitOption",
    "TestFractionOption",
    "check_delay",
    "delays_of",
    "has_ranges",
    "split_columns",
]

SHORTEST_DELAY, LONGEST_DELAY = 1e-6, 1_000_000
# Share of a table's rows that is kept for testing. These are the last rows; they are not learnt from.
TEST_FRACTION = 0.2
RANGE = re.compile(r"(\d+):(\d+)")


class DelayDistribution(StrEnum):
    """Distribution of the time between a party's uploads."""

    CONSTANT = "constant"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True)
class Delay:
    """Virtual seconds between a party's uploads. ``distribution``: constant or exponential with this mean."""

    mean: float = 1.0
    distribution: str = "constant"

    def draw(self, generator: np.random.Generator) -> float:
        return self.mean if self.distribution == "constant" else float(generator.exponential(self.mean))


SplitOption = Annotated[
    str | None,
    typer.Option(
        help="Which input columns each party has, half-open ranges or names: 'bank=0:5,shop=age+income'."
    ),
]
DelaysOption = Annotated[
    str | None,
    typer.Option(help="Mean virtual seconds between a party's uploads, 'bank=1,shop=10'; left out: 1."),
]
DelayDistributionOption = Annotated[
    DelayDistribution | None, typer.Option(help="Of the virtual seconds between uploads; left out: constant.")
]
NetworkDelayOption = Annotated[
    float | None,
    typer.Option(help="Virtual seconds from a party to whoever it sends to, and as many back; left out: 0."),
]
EpochsOption = Annotated[
    int | None, typer.Option(min=1, help="Passes, each in a random order by seed; left out: 1.")
]
OnlineOption = Annotated[
    bool, typer.Option("--online", help="One pass in the order of the file, labels as they come.")
]
LabelDelayOption = Annotated[
    int | None,
    typer.Option(min=0, help="With --online: by how many entities a label comes later; left out: 0."),
]
TestFractionOption = Annotated[
    float | None,
    typer.Option(help=f"Share of the rows, the last ones, to measure on; left out: {TEST_FRACTION}."),
]


def split_columns(
    text: str, parties: Sequence[str], offered: Sequence[str], columns: Sequence[str], label: str
) -> list[list[str]]:
    """The names of each party's columns, in the order of ``parties``; ConfigurationError names what is
    wrong."""
    own: dict[str, list[str]] = {}
    for party, value in _pairs("--split", text, parties):
        names: list[str] = []
        for part in value.split("+"):
            found = RANGE.fullmatch(part)
            if found is None:
                if part not in columns:
                    raise ConfigurationError(
                        f"--split {party}={value}: {part!r} is neither a range such as 0:5 nor a column "
                        f"(there are: {', '.join(columns)})"
                    )
                names.append(part)
                continue
            begin, end = int(found[1]), int(found[2])
            if not begin < end <= len(offered):
                raise ConfigurationError(
                    f"--split {party}={value}: {part} is no range within the {len(offered)} input columns"
                )
            names += offered[begin:end]
        if label in names:
            raise ConfigurationError(f"--split {party}={value}: {label} is the label, which no party may see")
        own[party] = list(dict.fromkeys(names))
    missing = [party for party in parties if party not in own]
    if missing:
        raise ConfigurationError(
            f"--split {text}: the columns are missing for {', '.join(missing)}, which federation.parties has "
            "too"
        )
    return [own[party] for party in parties]


def has_ranges(split: str, parties: Sequence[str]) -> bool:
    """Whether a party's columns are given by a range. If not, every column was chosen by name."""
    given = (part for _, value in _pairs("--split", split, parties) for part in value.split("+"))
    return any(RANGE.fullmatch(part) for part in given)


def delays_of(text: str | None, distribution: DelayDistribution, parties: Sequence[str]) -> list[Delay]:
    """Each party's delay, in the order of ``parties``; one second where ``text`` gives none.
    ConfigurationError names what is wrong.
    """
    means = dict.fromkeys(parties, 1.0)
    for party, value in _pairs("--delays", text, parties) if text is not None else ():
        try:
            means[party] = float(value)
        except ValueError:
            means[party] = math.nan
        if not SHORTEST_DELAY <= means[party] <= LONGEST_DELAY:
            raise ConfigurationError(
                f"--delays {party}={value}: a positive number of seconds, {SHORTEST_DELAY:g} to "
                f"{LONGEST_DELAY:,}, is expected"
            )
    return [Delay(mean, distribution.value) for mean in means.values()]


def check_delay(option: str, seconds: float | None) -> None:
    """ConfigurationError if an option is given and its virtual seconds cannot be a delay."""
    if seconds is not None and not 0 <= seconds <= LONGEST_DELAY:
        raise ConfigurationError(
            f"{option} {seconds:g}: a number of seconds, 0 to {LONGEST_DELAY:,}, is expected"
        )


def _pairs(option: str, text: str, parties: Sequence[str]) -> list[tuple[str, str]]:
    pairs: dict[str, str] = {}
    for part in text.split(","):
        party, separator, value = part.strip().partition("=")
        if not separator or not value:
            raise ConfigurationError(
                f"{option} {text}: PARTY=… is expected, with commas between them, not {part!r}"
            )
        if party not in parties:
            raise ConfigurationError(
                f"{option} {text}: {party!r} is none of federation.parties ({', '.join(parties)})"
            )
        if party in pairs:
            raise ConfigurationError(f"{option} {text}: {party} is there twice")
        pairs[party] = value
    return list(pairs.items())
