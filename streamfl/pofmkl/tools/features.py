"""``streamfl features``: the frequencies of a federation, for computing without streamfl."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from streamfl.configuration.settings import load_kind, load_settings
from streamfl.contract.role import ConfigurationError
from streamfl.pofmkl import SYSTEM
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.roles import learner
from streamfl.pofmkl.tools.federation import drawn_frequencies
from streamfl.records.samples import SampleReader
from streamfl.terminal.console import ConfigArgument, FormatOption, OutputFormat, print_json, say

__all__ = ["features"]


def features(
    config: ConfigArgument,
    out: Annotated[Path, typer.Option("--out", help="The .npz file to write.")],
    format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Write the frequencies that every client draws, one array for each set of kernels that see the same
    inputs.

    preset = "paper": 'frequencies', shape (kernels, features_per_kernel, dimension). "default":
    'frequencies_VIEW' for each of kernels.views, shape (bandwidths, features_per_kernel, dimension), two
    wider where the view has the last labels as inputs."""
    kind = load_kind(config)
    if kind not in SYSTEM.kinds:
        raise ConfigurationError(f"{config}: role.kind = {kind!r} draws no random features")
    settings = load_settings(config, PofmklSettings)
    if settings.samples is None:
        raise ConfigurationError(
            f"{config}: the section [samples] is missing: the inputs' dimension follows from it"
        )
    drawn = drawn_frequencies(learner(settings, SampleReader(settings.samples, fills_means=True).dimension))
    try:
        with out.open("wb") as file:
            np.savez(file, allow_pickle=False, **drawn)
    except OSError as error:
        raise ConfigurationError(f"--out {out}: cannot be written: {error.strerror or error}") from None
    if format is OutputFormat.JSON:
        arrays = {
            name: {"shape": list(array.shape), "dtype": str(array.dtype)} for name, array in drawn.items()
        }
        print_json({"path": str(out), "arrays": arrays})
    else:
        say(
            f"wrote {out}: "
            + ", ".join(f"{name} {array.shape} {array.dtype}" for name, array in drawn.items())
        )
