"""``streamfl demo``: a federation to look at, on data that River carries; no network, no Kafka."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from streamfl.cli.demo_vertical import vertical_demo
from streamfl.cli.output import FormatOption, OutputFormat, print_json, print_table, say
from streamfl.cli.simulate import deal, run_with_progress, scaled
from streamfl.pofmkl.config import ChallengersSection, PofmklFederation, PofmklSettings, UplinkSection
from streamfl.role import ConfigurationError
from streamfl.settings import RoleSection
from streamfl.simulation.report import picture, rows

__all__ = ["demo"]

# Approval ratings by five pollsters and the average that a sixth makes of them, day by day.
DATA = "river:TrumpApproval"
FEATURES = ["gallup", "ipsos", "morning_consult", "rasmussen", "you_gov"]
CLIENTS = 20
BUDGET_BYTES_PER_SECOND = 20_000.0


class System(StrEnum):
    """What the demo shows."""

    POFMKL = "pofmkl"
    VAFL = "vafl"


def demo(
    system: Annotated[
        System, typer.Argument(help="pofmkl: clients with samples of their own. vafl: parties with columns of their own.")
    ] = System.POFMKL,
    out: Annotated[Path, typer.Option("--out", help="Where the picture goes; .png or .svg.")] = Path("demo.png"),
    seed: Annotated[int, typer.Option(min=-(2**63), max=2**63 - 1, help="Another seed draws other features.")] = 7,
    format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Twenty clients learn together from polls of approval ratings: a table to judge it by, and a picture.

    With vafl: three parties learn together from what each sees of the same images.
    """
    if out.suffix not in (".png", ".svg"):
        raise ConfigurationError(f"--out {out}: a name ending in .png or .svg is expected")
    if system is System.VAFL:
        vertical_demo(out, seed, format)
        return
    streams = deal(DATA, "y", CLIENTS, None, FEATURES)
    settings = PofmklSettings(
        federation=PofmklFederation(name="demo", seed=seed, clients=CLIENTS),
        role=RoleSection(kind="pofmkl-client"),
        uplink=UplinkSection(budget_bytes_per_second=BUDGET_BYTES_PER_SECOND),
        challengers=ChallengersSection(models=["last-label", "linear", "knn", "hoeffding"]),
    )
    outcome = run_with_progress(scaled(settings, streams), streams, trace=True)
    try:
        picture(outcome, out, "streamfl: 20 clients, polls of approval ratings")
    except OSError as error:
        raise ConfigurationError(f"--out {out}: cannot be written: {error.strerror or error}") from None
    if format is OutputFormat.JSON:
        print_json({**outcome.summary(), "picture": str(out)})
    else:
        print_table(f"Federation on {DATA}", ("measure", "value"), rows(outcome))
    say(f"picture: {out}")
