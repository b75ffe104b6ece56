"""Options that several commands and systems share, by one definition each."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["DataOption", "LabelOption", "SeedOption"]

DataOption = Annotated[str, typer.Option("--data", help="A .csv, .parquet or .npz file, or river:NAME.")]
LabelOption = Annotated[str, typer.Option(help="The column with the label.")]
SeedOption = Annotated[int | None, typer.Option(help="Left out: federation.seed.")]
