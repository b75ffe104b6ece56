"""The members of a federation whose clients write samples to one topic; ``simulate`` and ``demo`` are derived
from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.configuration.settings import GivenSettings, RoleSection, RoleSettings, load_settings
from streamfl.contract.role import ConfigurationError
from streamfl.contract.seeding import rng_for
from streamfl.records.samples import SamplesSection
from streamfl.simulation.in_memory import run_in_memory
from streamfl.simulation.notebook import FrameTable
from streamfl.simulation.options import ClientColumnOption
from streamfl.simulation.pictures import FEDERATION, can_draw, label_axes, new_picture, save_picture
from streamfl.simulation.sources import ClientSettings, SampleRows
from streamfl.simulation.system_tools import Report, SimulationOptions
from streamfl.simulation.tables import numbers, read_data
from streamfl.terminal.console import say

__all__ = ["SAMPLES", "ClientMembers", "PublishedPrediction", "root_mean_square", "samples_of"]

Floats = NDArray[np.float64]
Settings = TypeVar("Settings", bound=RoleSettings)
SAMPLES = "samples"
"""The samples' topic of a federation that is not a user's own."""
# Names a sample by its row, whatever the data calls it.
ROW = "streamfl_row"
DEMO_CLIENTS, DEMO_ROUNDS = 3, 200


class PublishedPrediction(msgspec.Struct, gc=False):
    """What every system for clients publishes of a sample. prediction: in the label's own unit; None: too
    large for JSON."""

    client: str
    sample: str
    prediction: float | None


def samples_of(settings: RoleSettings) -> SamplesSection:
    """``[samples]`` of a member that reads them; ConfigurationError if it is missing."""
    section = cast(ClientSettings, settings).samples
    if section is None:
        raise ConfigurationError("the section [samples] is missing: it names the topic and the fields")
    return section


def root_mean_square(predictions: Floats, labels: Floats) -> dict[str, float]:
    """The RMSE, beside the labels' own deviation. predictions, labels: (samples,)."""
    return {
        "rmse": float(np.sqrt(np.square(predictions - labels).mean())),
        "deviation": float(np.std(labels)),
    }


@dataclass(frozen=True)
class ClientMembers(Generic[Settings]):
    """One member of each kind. All have the same settings, but for ``[role] kind``.

    settings: the class of the settings. It has ``samples`` and ``federation.clients``.
    kinds: the kind of each member, by its name; the first one reads the samples.
    score: figures of a simulation, from predictions and labels, (samples,) each in the label's own unit.
    learn_alone: whether what a client gets depends on its own samples alone. Then a run under faults has to
    equal one without.
    sections: by name, what the settings of a small federation have beside ``federation``, ``role`` and
    ``samples``.
    """

    settings: type[Settings]
    kinds: Mapping[str, str]
    score: Callable[[Floats, Floats], Mapping[str, float]] = root_mean_square
    learn_alone: bool = False
    sections: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reader(self) -> str:
        """The member that reads the samples."""
        return next(iter(self.kinds))

    def of(self, settings: Settings) -> dict[str, Settings]:
        """By member, its settings."""
        return {
            name: settings.model_copy(update={"role": RoleSection(kind=kind)})
            for name, kind in self.kinds.items()
        }

    def small(self, name: str, clients: int, seed: int = 0, **samples: Any) -> Settings:
        """Settings of a small federation. samples: other values of [samples]."""
        content: dict[str, Any] = {
            **self.sections,
            "federation": {"name": name, "seed": seed, "clients": clients},
            "role": {"kind": self.kinds[self.reader]},
            "samples": {"topic": SAMPLES, "features": ["x"], "label": "y", **samples},
        }
        return self.settings(**content)

    def simulate(self, asked: SimulationOptions, client_column: ClientColumnOption = None) -> Report:
        """Run all members on the memory bus. Each usable row is a sample, in the order of the file.

        Rows are dealt to the clients in turn unless a column names them.
        """
        seed = {} if asked.seed is None else {"federation": {"seed": asked.seed}}
        settings, table = load_settings(asked.config, self.settings, seed), read_data(asked.data)
        labels = numbers(table, [asked.label], asked.data)[:, 0]
        scale = {
            "label_range": (float(np.nanmin(labels)), float(np.nanmax(labels))),
            "sample_id": ROW,
            "label": asked.label,
        }
        section = SamplesSection(**{**samples_of(settings).model_dump(), **scale})
        clients = cast(ClientSettings, settings).federation.clients
        rows = SampleRows(section, None, table, str(asked.data), clients, asked.label, client_column, None)
        if rows.dropped:
            say(f"{rows.dropped} rows have no number in some column, or no client, and are left out")
        records = list(chain.from_iterable(rows.records(len(rows.usable))))
        bus = run_in_memory(self.of(settings.model_copy(update={"samples": section})).values(), records)
        decode, predicted = msgspec.json.Decoder(PublishedPrediction).decode, {}
        for record in bus.read(settings.predictions_topic):
            one = decode(record.value or b"")
            predicted[int(one.sample)] = np.nan if one.prediction is None else one.prediction
        if not predicted:
            raise ConfigurationError(f"{asked.config}: none of {len(records)} samples was predicted")
        places = np.array(sorted(predicted))
        predictions = np.array([predicted[place] for place in places.tolist()])
        figures = {"samples": len(places), **self.score(predictions, labels[places])}
        return Report(
            title=f"Federation on {asked.data}",
            rows=[(name, f"{value:,.5g}") for name, value in figures.items()],
            figures=figures,
            arrays={"predictions": predictions, "labels": labels[places]},
            predictions={"row": places, "prediction": predictions},
            draw=lambda axes: _draw(axes, np.square(predictions - labels[places])),
        )

    def demo(self, out: Path, seed: int) -> Report:
        """Simulate three clients, whose labels lie around a mean of their own. Draws the error so far."""
        shape = DEMO_ROUNDS, DEMO_CLIENTS
        draws = rng_for(seed, *self.kinds.values(), "demo")
        means, inputs = draws.uniform(0, 1, DEMO_CLIENTS), draws.normal(size=shape)
        labels = means + 0.02 * inputs + 0.1 * draws.normal(size=shape)
        clients = np.tile([f"client-{number}" for number in range(DEMO_CLIENTS)], DEMO_ROUNDS)
        table = FrameTable({"x": inputs.ravel(), "y": labels.ravel(), "client": clients})
        settings = self.small("demo", DEMO_CLIENTS, seed)
        given = GivenSettings(settings.model_dump(exclude_unset=True))
        report = self.simulate(SimulationOptions(given, table, "y", None, trace=False), "client")
        if can_draw() and report.draw is not None:
            figure, axes = new_picture(1, 8, 4.2)
            report.draw(axes)
            save_picture(figure, out, f"streamfl: {DEMO_CLIENTS} clients with means of their own")
        return report


def _draw(axes: Any, squared: Floats) -> None:
    """squared: errors, (samples,)."""
    samples = np.arange(1, len(squared) + 1)
    axes.plot(samples, np.sqrt(np.cumsum(squared) / samples), color=FEDERATION, linewidth=2.5)
    label_axes(axes, "Error so far", "samples", "RMSE, units of the label")
