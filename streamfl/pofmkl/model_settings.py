"""The settings that name models: a client's experts, its challengers, and the user's own models."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

from pydantic import AfterValidator, Field

from streamfl.configuration.settings import Section
from streamfl.contract.role import ConfigurationError
from streamfl.learning.challengers import challenger, challenger_names
from streamfl.learning.model_state import LARGEST_STATE
from streamfl.learning.own_models import STATE_BYTES, OwnModel, installed_models, is_own

__all__ = [
    "ChallengersSection",
    "ExpertsSection",
    "ModelSection",
    "Models",
    "ModelsChoice",
    "check_models",
    "models_named",
]


class ModelSection(Section):
    """A model of your own, under the name used in experts.river or challengers.models. Each model has a
    section."""

    make: str = Field(min_length=1, max_length=500)
    """What creates the model: `"package.module:function"`, a function or class of an installed package, or a
    name that an installed package registered in the entry-point group `streamfl.models`."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function."""
    state_bytes: int = Field(default=STATE_BYTES, ge=1, le=LARGEST_STATE)
    """Largest state of this model for one client, in bytes. A larger state is not stored, but counted and
    logged."""


def _named_once(value: list[str]) -> list[str]:
    if len(set(value)) < len(value):
        raise ValueError(f"{_expected()}, and none twice")
    return value


def _have_names(value: dict[str, ModelSection]) -> dict[str, ModelSection]:
    for name in value:
        if name in challenger_names() or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name):
            raise ValueError(
                f"{name!r} is no name for a model of one's own: up to 100 letters, digits, '.', '_' and '-' "
                f"are expected, and none of {', '.join(challenger_names())}"
            )
    return value


ModelNames = Annotated[list[str], AfterValidator(_named_once)]
Models = Annotated[dict[str, ModelSection], AfterValidator(_have_names)]


class ExpertsSection(Section):
    """The experts in a client's own mixture; for preset = "default"."""

    local: list[Literal["running-mean", "last-label", "neighbours", "scaled-neighbours"]] = Field(
        default=["running-mean", "last-label", "neighbours", "scaled-neighbours"]
    )
    """Predictors from the client's own samples, beside the kernels."""
    river: ModelNames = Field(default=[])
    """Experts beside the kernels: any model that challengers.models may name. They learn a client's latest
    100 to 256 samples. They begin anew with the latest 100 to 128 whenever as many more have come. A model of
    your own with state and restore does not begin anew."""
    mixtures: list[Literal["kernels", "all", "ridge"]] = Field(
        default=["kernels", "all", "ridge"], min_length=1
    )
    """The mixtures of experts. `kernels`: the kernels alone. `all`: all experts. `ridge`: all experts,
    corrected by a ridge regression. Their results are mixed once more."""


class ChallengersSection(Section):
    """Models that learn beside a client on its samples, for comparison: their predictions are measured, not
    published."""

    models: ModelNames = Field(default=[])
    """Challengers to run: any of `running-mean`, `last-label`, `linear`, `knn`, `scaled-knn`, `hoeffding`;
    with the logistic loss River's classifiers. Or models of your own: the name of a section `[models.NAME]`,
    `"package.module:function"`, or a name that an installed package registered in the entry-point group
    `streamfl.models`."""


class ModelsChoice(Protocol):
    """Settings that name models."""

    @property
    def models(self) -> Mapping[str, ModelSection]: ...

    @property
    def experts(self) -> ExpertsSection: ...

    @property
    def challengers(self) -> ChallengersSection: ...


def models_named(names: Sequence[str], sections: Mapping[str, ModelSection]) -> list[str | OwnModel]:
    """The models of these names: built-in ones as their names, the user's own as :class:`OwnModel`."""
    return [_model(name, sections) for name in names]


def _model(name: str, sections: Mapping[str, ModelSection]) -> str | OwnModel:
    if name in sections:
        section = sections[name]
        return OwnModel(name, section.make, section.parameters, section.state_bytes, f"models.{name}.make")
    return name if name in challenger_names() else OwnModel(name, name)


def check_models(settings: ModelsChoice, loss: Literal["square", "logistic"]) -> None:
    """Raises ValueError if a name is unknown, a section is unused, or a model cannot be created or does not
    fit the loss."""
    chosen = {"experts.river": settings.experts.river, "challengers.models": settings.challengers.models}
    for key, names in chosen.items():
        for name in names:
            if not (
                name in settings.models
                or name in challenger_names()
                or is_own(name)
                or name in installed_models()
            ):
                raise ValueError(f"{key}: {name!r} is not known: {_expected(settings.models)}")
            try:
                if name not in challenger_names():
                    challenger(_model(name, settings.models), loss)
            except ConfigurationError as error:
                raise ValueError(f"{key}: {error}") from None
    unused = [name for name in settings.models if not any(name in names for names in chosen.values())]
    if unused:
        raise ValueError(
            f"models.{unused[0]}: nobody uses it: name it in experts.river or challengers.models, or leave "
            "it out"
        )


def _expected(sections: Sequence[str] | Mapping[str, Any] = ()) -> str:
    known = ", ".join([*challenger_names(), *installed_models(), *sections])
    return (
        f'any of {known} are expected, or a "package.module:function" or a section [models.NAME] of your own'
    )
