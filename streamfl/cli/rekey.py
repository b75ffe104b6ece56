"""``streamfl rekey``: a long-running consumer that writes a topic anew, as a role needs it."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer

from streamfl.cli.preflight import Configured, read_configuration
from streamfl.cli.run import serve
from streamfl.contract.role import ConfigurationError
from streamfl.rekeying.kind import rekey_kind, streams_of
from streamfl.terminal.console import ConfigArgument

__all__ = ["inputs_of", "rekey", "rekeying", "rekeyings"]


class StreamName(StrEnum):
    """The topics of a role that can be written anew."""

    SAMPLES = "samples"
    LABELS = "labels"


def rekey(
    config: ConfigArgument,
    stream: Annotated[
        StreamName | None,
        typer.Option("--stream", help="Which section's topic, where both have a section rekey."),
    ] = None,
) -> None:
    """Write your topic anew, keyed by client, until told to stop; each record once. See [samples.rekey] and
    [samples.assemble]."""
    configured = read_configuration(config)
    named = streams_of(configured.settings)
    if stream is None and len(named) > 1:
        sections, options = (" and ".join(map(form.format, named)) for form in ("[{}.rekey]", "--stream {}"))
        raise ConfigurationError(f"{config} has {sections}: run one process for each, with {options}")
    own = rekeying(configured, stream.value if stream is not None else named[0] if named else "samples")
    serve(own, own.kind)


def rekeying(configured: Configured, stream: str) -> Configured:
    """These settings for the worker that writes a role's topic. Its consumer group is
    ``<group>.rekey-<stream>``."""
    settings = configured.settings
    bus = settings.bus.model_copy(update={"group": f"{settings.group}.rekey-{stream}"})
    return replace(configured, kind=rekey_kind(stream), settings=settings.model_copy(update={"bus": bus}))


def rekeyings(configured: Configured) -> list[Configured]:
    """The same for each topic of the role that is written anew."""
    return [rekeying(configured, stream) for stream in streams_of(configured.settings)]


def inputs_of(configured: Configured) -> list[str]:
    """The topics that the role's workers read as streams."""
    return [source.topic for source in configured.kind.channels(configured.settings).inputs.values()]
