"""``streamfl scorecard``: a party's own part of its latest model, as a file that scores without streamfl."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from streamfl.configuration.settings import load_kind, load_settings
from streamfl.contract.role import BadRecord, ConfigurationError, Record
from streamfl.quasi_newton.config import COORDINATOR, GUEST, QuasiNewtonSettings
from streamfl.quasi_newton.roles import ROLES
from streamfl.quasi_newton.rows.preprocessing import EVIDENCE, Preprocessing
from streamfl.quasi_newton.scoring.calibration import LatestCalibration
from streamfl.quasi_newton.scoring.scorecard import Calibration, points_of_party
from streamfl.quasi_newton.state import CALIBRATION, TRAINED
from streamfl.quasi_newton.training.trained_model import LatestModel, TrainedModel
from streamfl.runtime.bus import Bus, connect
from streamfl.runtime.remembered_settings import differences, is_settings, refusal
from streamfl.state.changelog import ChangedParts
from streamfl.terminal.console import ConfigArgument, FormatOption, OutputFormat, print_json, say

__all__ = ["scorecard"]


def scorecard(
    config: ConfigArgument,
    out: Annotated[Path, typer.Option("--out", help="The JSON file to write.")],
    slope: Annotated[
        float | None,
        typer.Option(
            help="At a host: the calibration's slope, as it stands in the guest's file; without it there are "
            "no points."
        ),
    ] = None,
    format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Write a party's own coefficients of the latest model, and the points of its columns.

    It is read from the party's state topic, whether its worker runs or not. Each party writes its own file:
    the sum of all files' points is the score. The guest's file has the calibration, once there is one.
    """
    kind = load_kind(config)
    if kind not in ROLES:
        raise ConfigurationError(f"{config}: role.kind = {kind!r} comes to no scorecard")
    if kind == COORDINATOR:
        raise ConfigurationError(
            f"{config}: a {COORDINATOR} has no columns, and so no part of the scorecard: ask a party"
        )
    if slope is not None and kind == GUEST:
        raise ConfigurationError("--slope is for a host: the guest has the calibration itself")
    if slope is not None and not math.isfinite(slope):
        raise ConfigurationError(f"--slope {slope:g}: a finite number is expected")
    settings = load_settings(config, QuasiNewtonSettings)
    own = settings.bus
    with closing(
        connect(own.url, {"connect_timeout_seconds": own.connect_timeout_seconds, **own.options})
    ) as bus:
        state = _state(bus, settings)
    content = _content(settings, state, slope)
    try:
        out.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--out {out}: cannot be written: {error.strerror or error}") from None
    if format is OutputFormat.JSON:
        print_json(
            {
                "path": str(out),
                "model": content["model"],
                "columns": len(content["coefficients"]),
                "points": content["points"] is not None,
            }
        )
    else:
        _say_written(out, content, settings)


def _say_written(out: Path, content: dict[str, Any], settings: QuasiNewtonSettings) -> None:
    """Say what the file has, and what its points wait for."""
    say(f"wrote {out}: model {content['model']}, {len(content['coefficients'])} columns")
    if content["points"] is None:
        say(
            "there are no points yet: "
            + (
                f"the model is calibrated once {settings.scoring.calibration_entities} held-out entities "
                "have a score and a label"
                if settings.is_guest
                else "give --slope, the calibration's slope in the guest's file"
            )
        )


def _state(bus: Bus, settings: QuasiNewtonSettings) -> dict[bytes, bytes]:
    """The model's entries in the changelog. ConfigurationError if they were made with other settings."""
    topic = f"{settings.member}.state"
    found = bus.describe([topic]).get(topic)
    if found is None:
        raise ConfigurationError(
            f"there is no topic {topic} on {settings.bus.url}: nothing was trained by this party yet"
        )
    if found.error is not None:
        raise ConfigurationError(f"topic {topic}: {found.error}")
    state: dict[bytes, bytes] = {}
    written: Record | None = None
    for record in bus.read(topic):
        key = record.key or b""
        if is_settings(record):
            written = record
        elif key.startswith(TRAINED.prefix) or key == CALIBRATION.prefix:
            state.pop(key, None)
            if record.value is not None:
                state[key] = record.value
    if written is not None:
        kind = ROLES[settings.role.kind]
        wrong, others = differences(kind.state_settings(settings), written)
        if wrong:
            raise ConfigurationError(
                refusal(topic, written.partition, wrong, others, kind.channels(settings), settings.group)
            )
    return state


def _content(settings: QuasiNewtonSettings, state: dict[bytes, bytes], slope: float | None) -> dict[str, Any]:
    parts = ChangedParts()
    latest, latest_fitted = LatestModel(parts), LatestCalibration(parts)
    try:
        for key, value in state.items():
            parts.restore(key, value)
        model, fitted = latest.model, latest_fitted.fitted
    except (BadRecord, ValueError) as error:
        raise ConfigurationError(
            f"topic {settings.member}.state: the model in it is damaged: {error}"
        ) from None
    if model is None:
        raise ConfigurationError(
            f"topic {settings.member}.state: no training has come to its end yet, so that there is no model"
        )
    is_guest, scale = settings.role.kind == GUEST, settings.scoring.scale
    samples = settings.required_samples("a party").samples
    names = _names(samples.input_names or samples.features, model.preparation.raw_columns)
    weights, preprocessing = _of_all_columns(model), model.preparation.preprocessing
    calibration = None if slope is None else Calibration(0.0, slope)
    if fitted is not None and fitted.version == model.version:
        calibration = Calibration(fitted.intercept, fitted.slope)
    points = None
    if calibration is not None:
        whole = [*weights.tolist(), float(model.weights[-1])] if is_guest else weights.tolist()
        points = points_of_party(names, np.array(whole), preprocessing, calibration, scale, guest=is_guest)
    content: dict[str, Any] = {
        "federation": settings.federation.name,
        "party": settings.own_party,
        "model": model.version,
        "divided_by": samples.input_norm,
        "coefficients": _coefficients(names, weights, preprocessing),
        "points": points,
        "scale": {"base_points": scale.base_points, "base_odds": scale.base_odds, "doubling": scale.doubling},
    }
    if is_guest:
        content["intercept"] = float(model.weights[-1])
        content["calibration"] = None
        if fitted is not None and calibration is not None:
            content["calibration"] = {
                "intercept": fitted.intercept,
                "slope": fitted.slope,
                "entities": fitted.rows,
            }
    else:
        content["quantum"] = settings.scoring.quantum
    return content


def _names(features: list[str] | str | None, columns: int) -> list[str]:
    """Names of the raw columns."""
    if isinstance(features, list):
        return features
    return [f"{features or 'column'}[{number}]" for number in range(columns)]


def _of_all_columns(model: TrainedModel) -> Any:
    """Weights of all columns that preprocessing makes. A column that was not learnt from has 0."""
    kept = model.preparation.kept
    weights = np.zeros(model.preparation.results)
    weights[kept] = model.weights[: len(kept)]
    return weights


def _coefficients(names: Sequence[str], weights: Any, own: Preprocessing) -> list[dict[str, Any]]:
    """The coefficients of each column: weight (f(x) - mean) / deviation is its part of the output u, with the
    transform f."""
    if own.method == "quantile-bins":
        shown = [
            (name, {"bin": number}) for name, kept in zip(names, own.kept, strict=True) for number in kept
        ]
    else:
        shown = [(name, _transform(own, column)) for column, name in enumerate(names)]
    return [
        {"column": name, **how, "weight": float(weight), "mean": float(mean), "deviation": float(deviation)}
        for (name, how), weight, mean, deviation in zip(shown, weights, own.mean, own.deviation, strict=True)
    ]


def _transform(own: Preprocessing, column: int) -> dict[str, Any]:
    """The transform f of a column. missing: replaces a missing number. values: by bin, the one of missing
    numbers last."""
    if own.method == EVIDENCE:
        return {
            "transform": own.method,
            "edges": own.edges[column].tolist(),
            "values": own.values[column].tolist(),
        }
    how: dict[str, Any] = {"transform": own.method, "missing": float(own.fill[column])}
    if own.low is not None and own.high is not None:
        how["low"], how["high"] = float(own.low[column]), float(own.high[column])
    if own.knots:
        how["knots"] = own.knots[column].tolist()
    return how
