"""Users' own models: functions of installed packages make them, and the operator's settings name them.

They are guests. Their errors and wrong return values are caught, counted and logged, and the worker goes on
without them. Their state is data: numbers, texts, lists, dictionaries and arrays, limited in size. Nothing is
ever unpickled.
"""

from __future__ import annotations

import copy
import functools
import importlib
import json
import logging
import math
import numbers
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoints, entry_points
from types import TracebackType
from typing import Any, Literal, Protocol

from streamfl.contract.measurement import Measurement, Metric
from streamfl.contract.role import ConfigurationError
from streamfl.encoding.changelog_checks import decode_restored
from streamfl.encoding.wire import fingerprint
from streamfl.learning.model_state import ModelSnapshot, StateRefused, decode_state, encode_state

__all__ = [
    "GUESTS_ERRORS",
    "REMEMBERED_BYTES",
    "STATE_BYTES",
    "Model",
    "ModelEnded",
    "ModelFailures",
    "NoNumber",
    "OwnChallenger",
    "OwnModel",
    "RemembersItself",
    "decode_remembered",
    "installed_models",
    "is_own",
    "is_own_model",
]

log = logging.getLogger(__name__)

Loss = Literal["square", "logistic"]
GROUP = "streamfl.models"
STATE_BYTES = 65_536
# A guest's errors, sys.exit() included. Anything else that it raises becomes ModelEnded, except Ctrl-C, which
# is the operator's.
GUESTS_ERRORS = (Exception, SystemExit)
# Most bytes that are stored beside a state.
REMEMBERED_BYTES = 100
REASONS = ("make", "predict", "no_number", "learn", "state", "too_large", "restore")


class Model(Protocol):
    """The methods that a user's own model needs, as in River; with the logistic loss predict_proba_one for
    predict_one."""

    def predict_one(self, x: dict[int, float], /) -> float:
        """The prediction of a sample whose label is not known yet. x: inputs by column number."""

    def learn_one(self, x: dict[int, float], y: float, /) -> Any:
        """Learn the label; with the logistic loss it is True or False. The return value is ignored."""


class RemembersItself(Protocol):
    """Optional methods of a model, to keep its state over restarts."""

    def state(self) -> Any:
        """All that it has learnt: None, truth values, numbers, texts, bytes, lists, dictionaries and NumPy
        arrays of these."""

    def restore(self, state: Any, /) -> None:
        """Take back what :meth:`state` returned, in a new model. Tuples come back as lists."""


class NoNumber(ValueError):
    """A model's prediction is no finite number."""


class ModelEnded(Exception):
    """A model raised something that is no Exception, such as a panic in Rust or GeneratorExit. It would end
    the worker."""


class _AsGuest:
    """A context for a guest's code, which lets out only GUESTS_ERRORS and Ctrl-C."""

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, (*GUESTS_ERRORS, KeyboardInterrupt)):
            raise ModelEnded(_told(error)) from None


_as_guest = _AsGuest()


@dataclass(frozen=True)
class OwnModel:
    """How a model is made.

    name: as in ``experts.river`` and ``challengers.models``.
    make: "package.module:function", or the name of an entry point of the group ``streamfl.models``.
    parameters: the function's keyword arguments.
    state_bytes: largest state of the model, in bytes.
    setting: the setting in which the operator named it, for errors.
    """

    name: str
    make: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    state_bytes: int = STATE_BYTES
    setting: str = "make"

    def made(self, loss: Loss) -> Any:
        """A new model; ConfigurationError says what is wrong, where, and what to do."""
        where = f"model {self.name!r}: {self.setting} = {self.make!r}"
        try:
            with _as_guest:
                function = _function(self.make)
        # It is the operator's own code, and may fail in any way.
        except GUESTS_ERRORS as error:
            raise ConfigurationError(f"{where}: {_told(error)}; {_remedy(error)}") from None
        try:
            # A copy: a guest may change a list among its parameters, and the next client's model gets the
            # same parameters.
            with _as_guest:
                model = function(**copy.deepcopy(dict(self.parameters)))
                missing = [name for name in _methods(loss) if not callable(getattr(model, name, None))]
        except GUESTS_ERRORS as error:
            given = ", ".join(self.parameters) or "no parameters"
            text = f"{where}: calling it with {given} raised {_told(error)}; give parameters that it takes"
            raise ConfigurationError(text) from None
        if missing:
            kind = type(model).__name__
            raise ConfigurationError(
                f"{where}: it gave a {kind}, which has no {' and no '.join(missing)}; with this loss a model "
                f"needs {' and '.join(_methods(loss))}"
            )
        _check_kind(model, loss, where)
        return model

    @functools.cached_property
    def fingerprint(self) -> int:
        """Identifies how the model is made. The state of a model that is made in another way is not
        restored."""
        return fingerprint(self.make, json.dumps(dict(self.parameters), sort_keys=True, default=str))


class OwnChallenger:
    """A user's own model as a challenger or an expert, with bounded predictions. ``labels``: how many it
    learnt.

    Predictions are clipped to the range of the labels that it learnt. Probabilities are kept away from 0 and
    1 by 1 / (2 n + 2) after n labels.
    """

    def __init__(self, own: OwnModel, loss: Loss) -> None:
        self._own = own
        self._logistic = loss == "logistic"
        self._model = own.made(loss)
        self.labels, self._low, self._high = 0, 0.0, 0.0

    def predict(self, inputs: dict[int, float]) -> float:
        # A copy: a guest may change its input.
        with _as_guest:
            if self._logistic:
                least = 0.5 / (self.labels + 1)
                return min(max(_probability(self._model.predict_proba_one(dict(inputs))), least), 1.0 - least)
            return min(max(_number(self._model.predict_one(dict(inputs))), self._low), self._high)

    def learn(self, inputs: dict[int, float], label: float) -> None:
        with _as_guest:
            self._model.learn_one(dict(inputs), bool(label) if self._logistic else label)
        self._low = min(self._low, label) if self.labels else label
        self._high = max(self._high, label) if self.labels else label
        self.labels += 1

    @property
    def stateful(self) -> bool:
        """Whether the model's state can be stored and restored."""
        return all(callable(getattr(self._model, name, None)) for name in ("state", "restore"))

    def remembered(self, number: int) -> bytes:
        """Its state after sample ``number``, as bytes. Raises StateRefused, or whatever the model raises."""
        with _as_guest:
            state = encode_state(self._model.state(), self._own.state_bytes)
        return ModelSnapshot(
            number, self._own.fingerprint, self.labels, self._low, self._high, state
        ).encoded()

    def take_back(self, remembered: ModelSnapshot) -> None:
        """Restore the state in ``remembered``. Raises StateRefused, or whatever the model raises."""
        if remembered.made != self._own.fingerprint:
            raise StateRefused("restore", "the state belongs to a model with other parameters")
        with _as_guest:
            self._model.restore(decode_state(remembered.state, self._own.state_bytes))
        self.labels, self._low, self._high = remembered.labels, remembered.low, remembered.high


class ModelFailures:
    """Counts models' failures, and logs the first of each model and reason.

    use: expert or challenger, for the text.
    models: the names.
    """

    def __init__(self, use: str, models: Iterable[str]) -> None:
        self._use = use
        self._counts = {name: dict.fromkeys(REASONS, 0) for name in models}

    def note(self, model: str, reason: str, error: BaseException, then: str) -> None:
        """Count a model's failure. then: what the worker does about it, for the log."""
        reason = _reason(error, reason)
        self._counts[model][reason] += 1
        if self._counts[model][reason] == 1:
            told = f"{self._use} {model}: {reason}: {_told(error)}; {then}"
            log.warning("%s; further ones are only counted", told)

    def measure(self, failures: Metric, reasons: Collection[str] = REASONS) -> Iterable[Measurement]:
        """A counter by model and reason."""
        for model, counts in self._counts.items():
            for reason in reasons:
                yield failures(counts[reason], model, reason)


def is_own_model(model: str | OwnModel) -> bool:
    """Whether it is a user's own model, and not the name of one of ours."""
    return isinstance(model, OwnModel) or is_own(model)


def is_own(name: str) -> bool:
    """Whether the name is a user's own model, "package.module:function"."""
    module, _, function = name.partition(":")
    return function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def installed_models() -> Collection[str]:
    """The names of models that installed packages offer, in the group ``streamfl.models``."""
    return sorted({point.name for point in _installed()})


@functools.cache
def _installed() -> EntryPoints:
    # Cached, because it reads every package's metadata.
    return entry_points(group=GROUP)


def _function(make: str) -> Callable[..., Any]:
    if is_own(make):
        module, _, name = make.partition(":")
        found = getattr(importlib.import_module(module), name)
    else:
        points = [point for point in _installed() if point.name == make]
        if not points:
            known = ", ".join(installed_models()) or "none"
            raise LookupError(f"no installed package offers a model of this name (known: {known})")
        found = points[0].load()
    if not callable(found):
        raise TypeError(f"it is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def _methods(loss: Loss) -> tuple[str, str]:
    return ("learn_one", "predict_proba_one" if loss == "logistic" else "predict_one")


def _check_kind(model: Any, loss: Loss, where: str) -> None:
    from river import base

    # A pipeline has every method. River takes its kind from its last step.
    kind = base.Classifier if loss == "logistic" else base.Regressor
    if isinstance(model, base.Base) and not isinstance(model, kind):
        named = kind.__name__.lower()
        raise ConfigurationError(
            f"{where}: no {named} of River's, which is expected with this loss: {type(model).__name__}"
        )


def _number(prediction: Any) -> float:
    # Text that looks like a number is a mistake, and float() would accept it.
    if not isinstance(prediction, numbers.Real):
        raise NoNumber(f"the prediction is a {type(prediction).__name__}, no number")
    if not math.isfinite(prediction):
        raise NoNumber(f"the prediction is {prediction}")
    return float(prediction)


def _probability(prediction: Any) -> float:
    if isinstance(prediction, Mapping):
        # As in River: a class that was never seen is left out, and an empty mapping means no opinion.
        prediction = prediction.get(True, 0.0) if prediction else 0.5
    probability = _number(prediction)
    if not 0.0 <= probability <= 1.0:
        raise NoNumber(f"the prediction is {probability:g}, no probability")
    return probability


def _reason(error: BaseException, reason: str) -> str:
    if isinstance(error, StateRefused):
        return error.reason
    return "no_number" if isinstance(error, NoNumber) else reason


def _told(error: BaseException) -> str:
    try:
        # The text of a ModelEnded already begins with the error's type.
        return (str(error) if isinstance(error, ModelEnded) else f"{type(error).__name__}: {error}")[:300]
    except KeyboardInterrupt:
        raise
    # It is the guest's own class, and its __str__ may fail in any way.
    except BaseException as another:
        return (
            f"{type(error).__name__}, whose text cannot be told: its __str__ raised {type(another).__name__}"[
                :300
            ]
        )


def _remedy(error: BaseException) -> str:
    if isinstance(error, ImportError):
        return "install its package where streamfl runs, or name its folder in PYTHONPATH"
    if isinstance(error, LookupError):
        return 'install the package, or say "package.module:function"'
    return 'say "package.module:function", with a function that is there'


def decode_remembered(content: bytes) -> ModelSnapshot:
    """Decode what :meth:`OwnChallenger.remembered` returned; BadRecord if the content cannot be that."""
    return decode_restored(content, ModelSnapshot, "a model's state").checked()
