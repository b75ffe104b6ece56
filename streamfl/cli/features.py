"""``streamfl features``: the frequencies of a federation, for those who compute without streamfl."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from streamfl.cli.output import FormatOption, OutputFormat, print_json, say
from streamfl.cli.preflight import ConfigArgument, read_configuration
from streamfl.kernels import frequencies
from streamfl.pofmkl.config import PofmklSettings
from streamfl.role import ConfigurationError
from streamfl.samples import SampleReader

__all__ = ["features"]


def features(
    config: ConfigArgument,
    out: Annotated[Path, typer.Option("--out", help="The .npz file to write.")],
    format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Write the frequencies that every client draws: array 'frequencies', shape (kernels, features_per_kernel, dimension)."""
    configured = read_configuration(config)
    settings = configured.settings
    if not isinstance(settings, PofmklSettings):
        raise ConfigurationError(f"{config}: role.kind = {settings.role.kind!r} draws no random features")
    if settings.samples is None:
        raise ConfigurationError(f"{config}: the section [samples] is missing: the inputs' dimension follows from it")
    learning = settings.learning
    drawn = frequencies(
        settings.kernels.dictionary(),
        learning.features_per_kernel,
        SampleReader(settings.samples).dimension,
        settings.federation.seed,
        dtype=np.dtype(learning.precision),
        shared_directions=learning.shared_directions,
    )
    try:
        with out.open("wb") as file:
            np.savez(file, frequencies=drawn)
    except OSError as error:
        raise ConfigurationError(f"--out {out}: cannot be written: {error.strerror or error}") from None
    if format is OutputFormat.JSON:
        print_json({"path": str(out), "shape": list(drawn.shape), "dtype": str(drawn.dtype)})
    else:
        say(f"wrote {out}: frequencies {drawn.shape} {drawn.dtype}")
