"""The settings that name models: a client's own experts, its challengers, and models of the user's own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

from pydantic import AfterValidator, Field

from streamfl.learning.challengers import challenger, challenger_names
from streamfl.learning.model_state import LARGEST_STATE
from streamfl.learning.own_models import STATE_BYTES, OwnModel, installed_models, is_own
from streamfl.role import ConfigurationError
from streamfl.settings import Section

__all__ = ["ChallengersSection", "ExpertsSection", "ModelSection", "Models", "ModelsChoice", "check_models", "models_named"]


class ModelSection(Section):
    """A model of one's own, under the name that experts.river or challengers.models has. There is a section for each."""

    make: str = Field(min_length=1, max_length=500)
    """Who makes it: `"package.module:function"`, a function or class of an installed package, or a name that an installed package
    registered in the entry-point group `streamfl.models`."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """The function's keyword arguments."""
    state_bytes: int = Field(default=STATE_BYTES, ge=1, le=LARGEST_STATE)
    """The most bytes that one such model of one client may remember. What says more is not remembered, counted and logged."""


def _named_once(value: list[str]) -> list[str]:
    if len(set(value)) < len(value):
        raise ValueError(f"{_expected()}, and none twice")
    return value


def _have_names(value: dict[str, ModelSection]) -> dict[str, ModelSection]:
    for name in value:
        if name in challenger_names() or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name):
            raise ValueError(
                f"{name!r} is no name for a model of one's own: up to 100 letters, digits, '.', '_' and '-' are expected, and none "
                f"of {', '.join(challenger_names())}"
            )
    return value


ModelNames = Annotated[list[str], AfterValidator(_named_once)]
Models = Annotated[dict[str, ModelSection], AfterValidator(_have_names)]


class ExpertsSection(Section):
    """Who takes part in a client's own mixture; belongs to preset = "default"."""

    local: list[Literal["running-mean", "last-label", "neighbours", "scaled-neighbours"]] = Field(
        default=["running-mean", "last-label", "neighbours", "scaled-neighbours"]
    )
    """Predictors from the client's own samples, beside the kernels."""
    river: ModelNames = Field(default=[])
    """Any that challengers.models may name, as experts beside the kernels. They learn a client's latest 100 to 256 samples, and
    begin anew with the latest 100 to 128 whenever these have been followed by as many. A model of one's own that has state and
    restore does not begin anew."""
    mixtures: list[Literal["kernels", "all", "ridge"]] = Field(default=["kernels", "all", "ridge"], min_length=1)
    """`kernels`: the kernels alone. `all`: all experts. `ridge`: all of them, corrected by a ridge regression. The results are
    mixed once more."""


class ChallengersSection(Section):
    """What learns beside a client on its own samples, to be measured: its predictions are not published."""

    models: ModelNames = Field(default=[])
    """Any of `running-mean`, `last-label`, `linear`, `knn`, `scaled-knn`, `hoeffding`; with the logistic loss River's classifiers.
    Or models of one's own: the name of a section `[models.NAME]`, `"package.module:function"`, or a name that an installed package
    registered in the entry-point group `streamfl.models`."""


class ModelsChoice(Protocol):
    """The settings of whoever names models."""

    @property
    def models(self) -> Mapping[str, ModelSection]: ...

    @property
    def experts(self) -> ExpertsSection: ...

    @property
    def challengers(self) -> ChallengersSection: ...


def models_named(names: Sequence[str], sections: Mapping[str, ModelSection]) -> list[str | OwnModel]:
    """The models of these names: those of ours by their names, and how those of one's own are made."""
    return [_model(name, sections) for name in names]


def _model(name: str, sections: Mapping[str, ModelSection]) -> str | OwnModel:
    if name in sections:
        section = sections[name]
        return OwnModel(name, section.make, section.parameters, section.state_bytes, f"models.{name}.make")
    return name if name in challenger_names() else OwnModel(name, name)


def check_models(settings: ModelsChoice, loss: Literal["square", "logistic"]) -> None:
    """ValueError where a name is known to nobody, a section is named by nobody, or a model cannot be made or does not fit."""
    chosen = {"experts.river": settings.experts.river, "challengers.models": settings.challengers.models}
    for key, names in chosen.items():
        for name in names:
            if not (name in settings.models or name in challenger_names() or is_own(name) or name in installed_models()):
                raise ValueError(f"{key}: {name!r} is not known: {_expected(settings.models)}")
            try:
                if name not in challenger_names():
                    challenger(_model(name, settings.models), loss)
            except ConfigurationError as error:
                raise ValueError(f"{key}: {error}") from None
    unused = [name for name in settings.models if not any(name in names for names in chosen.values())]
    if unused:
        raise ValueError(f"models.{unused[0]}: nobody uses it: name it in experts.river or challengers.models, or leave it out")


def _expected(sections: Sequence[str] | Mapping[str, Any] = ()) -> str:
    known = ", ".join([*challenger_names(), *installed_models(), *sections])
    return f'any of {known} are expected, or a "package.module:function" or a section [models.NAME] of your own'
