"""Users' own models: how they are made, bounded and restored."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import datetime
from enum import IntEnum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import numpy as np
import pytest

from streamfl.contract.role import BadRecord, ConfigurationError
from streamfl.learning.challengers import challenger
from streamfl.learning.model_state import StateRefused, decode_state, encode_state
from streamfl.learning.own_models import ModelEnded, ModelFailures, OwnChallenger, OwnModel, decode_remembered

PLAIN: list[Any] = [None, True, 3, -0.1, "ü", b"\0", [1, [2.5, None]], {"a": {1: 2.0}}, float("inf")]
ARRAYS = [np.arange(6).astype(kind).reshape(2, 3) for kind in ("f8", "f4", "i8", "i4", "u1", "?", ">f8")]


class Point(NamedTuple):
    x: int
    y: int


class Level(IntEnum):
    LOW = 1


@pytest.mark.parametrize("state", [*PLAIN, [PLAIN, {"deep": PLAIN}]])
def test_a_plain_state_comes_back_as_it_was(state: Any) -> None:
    """Protects a model's state from changing in a restart."""
    assert decode_state(encode_state(state, 1000), 1000) == state


@pytest.mark.parametrize("array", [*ARRAYS, np.zeros((0, 3)), np.array(2.5), np.asfortranarray(ARRAYS[0])])
def test_an_array_comes_back_with_shape_and_kind(array: Any) -> None:
    """Protects weights: a list or another precision would change the model. The restored array is writable,
    as before."""
    found = decode_state(encode_state({"w": array}, 1000), 1000)["w"]
    assert found.dtype == array.dtype.newbyteorder("=")
    assert found.shape == array.shape
    np.testing.assert_array_equal(found, array)
    assert found.flags.writeable


def test_a_number_of_numpy_is_a_number() -> None:
    """Protects the most common state, a number that NumPy computed."""
    given = [np.float64(0.1), np.int64(3), np.bool_(True), np.float32(0.5)]
    assert decode_state(encode_state(given, 100), 100) == [0.1, 3, True, 0.5]


@pytest.mark.parametrize(
    "state", [object(), np.array([object()]), np.array(["a"]), {"f": print}, 2**80, [1j]]
)
def test_what_is_no_data_is_refused(state: Any) -> None:
    """Protects the changelog: it may only contain data, because anything else could not be read without
    running its code."""
    with pytest.raises(StateRefused) as found:
        encode_state(state, 1000)
    assert found.value.reason == "state"


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        datetime(2026, 1, 1),
        UUID(int=1),
        defaultdict(float, a=1.0),
        Point(1, 2),
        Level.LOW,
        bytearray(b"a"),
        np.ma.array([1, 2], mask=[False, True]),
        np.datetime64("2026-01-01"),
        np.longdouble(1.5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_come_back_as_another_type_is_refused(value: Any) -> None:
    """Protects a model from a list in place of a set, or a dictionary without its default: the reason is
    reported."""
    for state in (value, {"a": [1, (2.0, value)]}):
        with pytest.raises(
            StateRefused, match=f"a {type(value).__name__} is not a plain value or an array"
        ) as found:
            encode_state(state, 10_000)
        assert found.value.reason == "state"


def test_a_state_has_a_bound_both_ways() -> None:
    """Protects disk and memory: neither a model nor a changelog may use records of any size."""
    content = encode_state(b"x" * 100, 102)
    with pytest.raises(StateRefused, match="102 bytes, state_bytes = 101"):
        encode_state(b"x" * 100, 101)
    with pytest.raises(StateRefused) as found:
        decode_state(content, 101)
    assert found.value.reason == "too_large"
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(StateRefused):
        encode_state(nested, 10**6)
    with pytest.raises(StateRefused):
        decode_state(b"\x91" * 60_000 + b"\x90", 10**6)


def test_damaged_states_are_refused_and_nothing_else() -> None:
    """Protects a start from a damaged record: any bytes are refused or read, without any other error."""
    draws = random.Random(5)
    content = encode_state({"w": ARRAYS[0], "seen": {3: 4}, "names": ["a", None]}, 1000)
    refused = 0
    for _ in range(600):
        damaged = bytearray(content)
        for _ in range(draws.choice([1, 1, 2, 5])):
            damaged[draws.randrange(len(damaged))] = draws.randrange(256)
        try:
            decode_state(bytes(damaged[: draws.choice([len(damaged), draws.randrange(len(damaged))])]), 1000)
        except StateRefused:
            refused += 1
    assert refused > 200


def test_damaged_records_of_a_model_are_the_peers_error() -> None:
    """Protects a start in the same way: the values around a state are checked before they are used."""
    draws = random.Random(6)
    made = OwnChallenger(OwnModel("line", "guest_models:line"), "square")
    made.learn({0: 1.0, 1: 0.0, 2: 1.0}, 0.5)
    content = made.remembered(64)
    assert decode_remembered(content).number == 64
    for _ in range(600):
        damaged = bytearray(content)
        damaged[draws.randrange(len(damaged))] = draws.randrange(256)
        try:
            found = decode_remembered(bytes(damaged))
        except BadRecord:
            continue
        assert np.isfinite([found.low, found.high]).all()
    with pytest.raises(BadRecord):
        decode_remembered(msgspec.msgpack.encode([64, 1, 1, 2.0, 1.0, b""]))


@pytest.mark.parametrize(
    ("make", "parameters", "loss", "said"),
    [
        ("no_such_package:line", {}, "square", "No module named 'no_such_package'; install its package"),
        ("guest_models:lines", {}, "square", "has no attribute 'lines'; say \"package.module:function\""),
        ("guest_models:ready", {}, "square", "it is a str, not a function"),
        ("guest_models:line", {"speed": 1}, "square", "calling it with speed raised TypeError"),
        (
            "guest_models:raising",
            {},
            "square",
            "calling it with no parameters raised OSError: no weights here",
        ),
        ("guest_models:no_model", {}, "square", "a object, which has no learn_one and no predict_one"),
        ("guest_models:line", {}, "logistic", "a Line, which has no predict_proba_one"),
        ("river.linear_model:LogisticRegression", {}, "square", "no regressor of River's"),
        ("river.linear_model:LinearRegression", {}, "logistic", "has no predict_proba_one"),
        ("unheard", {}, "square", "no installed package offers a model of this name"),
    ],
)
def test_what_is_wrong_is_told_with_what_to_do(
    make: str, parameters: dict[str, Any], loss: Any, said: str
) -> None:
    """Protects the first try: the message has the setting, its value, the error and the remedy, without a
    traceback."""
    own = OwnModel("mine", make, parameters, setting="models.mine.make")
    with pytest.raises(ConfigurationError) as found:
        challenger(own, loss)
    assert str(found.value).startswith(f"model 'mine': models.mine.make = {make!r}: ")
    assert said in str(found.value)


class Panic(BaseException):
    """Like pyo3's PanicException, which is not an Exception."""


class Unspeakable(Exception):
    """An error whose own text fails."""

    def __str__(self) -> str:
        raise Panic("no text")


class Raises:
    """A model that raises an error in every method."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def predict_one(self, x: dict[int, float]) -> float:
        raise self._error

    def learn_one(self, x: dict[int, float], y: float) -> None:
        raise self._error

    def state(self) -> None:
        raise self._error

    def restore(self, state: Any) -> None:
        raise self._error


@pytest.mark.parametrize("error", [Panic("index out of bounds"), GeneratorExit("index out of bounds")])
def test_what_is_no_exception_ends_no_worker(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the worker, and `streamfl check`, from a Rust panic within a model: it is caught like any
    other error."""
    said = f"{type(error).__name__}: index out of bounds"
    monkeypatch.setattr("guest_models.panics", lambda: Raises(error), raising=False)
    one = OwnChallenger(OwnModel("panics", "guest_models:panics"), "square")
    fine = OwnChallenger(OwnModel("line", "guest_models:line"), "square")
    remembered = decode_remembered(fine.remembered(1))
    own = msgspec.structs.replace(remembered, made=OwnModel("panics", "guest_models:panics").fingerprint)
    calls = (
        lambda: one.predict({}),
        lambda: one.learn({}, 1.0),
        lambda: one.remembered(1),
        lambda: one.take_back(own),
    )
    for call in calls:
        with pytest.raises(ModelEnded, match=said):
            call()

    def fails() -> None:
        raise error

    monkeypatch.setattr("guest_models.panics", fails)
    with pytest.raises(ConfigurationError, match=f"calling it with no parameters raised {said}; give"):
        challenger(OwnModel("panics", "guest_models:panics"), "square")


def test_ctrl_c_is_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the operator's way out: Ctrl-C while a model computes is not the model's failure."""
    monkeypatch.setattr("guest_models.panics", lambda: Raises(KeyboardInterrupt()), raising=False)
    with pytest.raises(KeyboardInterrupt):
        OwnChallenger(OwnModel("panics", "guest_models:panics"), "square").predict({})


def test_an_error_that_has_no_text_is_told_by_its_kind(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the worker from a model's error whose __str__ fails. It counts like any other."""
    failures = ModelFailures("expert", ["mine"])
    failures.note("mine", "learn", Unspeakable(), "it is off for a while")
    assert (
        "expert mine: learn: Unspeakable, whose text cannot be told: its __str__ raised Panic; it is off"
        in caplog.text
    )

    def fails() -> None:
        raise Unspeakable

    monkeypatch.setattr("guest_models.fails", fails, raising=False)
    with pytest.raises(ConfigurationError, match="raised Unspeakable, whose text cannot be told"):
        OwnModel("mine", "guest_models:fails").made("square")


def test_predictions_stay_within_the_labels_seen() -> None:
    """Protects the mixture and the figures from a model that is off by orders of magnitude early on."""
    one = OwnChallenger(OwnModel("wild", "guest_models:Wild"), "square")
    assert one.predict({}) == 0.0
    one.learn({}, 2.0)
    one.learn({}, 3.0)
    assert one.predict({}) == 3.0


def test_parameters_are_each_models_own() -> None:
    """Protects the next client: a model's change to a list parameter does not affect the next model."""
    own = OwnModel("hungry", "guest_models:hungry", {"rates": [0.1]})
    assert [own.made("square").rate for _ in range(2)] == [0.1, 0.1]


def test_a_classifier_gives_probabilities_that_are_never_certain() -> None:
    """Protects the log loss: one half before a label, and after n labels away from 0 and 1 by 1 / (2 n +
    2)."""
    one = challenger(OwnModel("chance", "guest_models:Chance"), "logistic")
    assert one.predict({}) == 0.5
    for _ in range(4):
        one.learn({}, 1.0)
    assert one.predict({}) == pytest.approx(0.9)


def test_what_another_model_remembered_is_not_taken_back() -> None:
    """Protects from numbers with another meaning: the parameters were changed, and the state belongs to the
    old model."""
    one = OwnChallenger(OwnModel("line", "guest_models:line", {"rate": 0.1}), "square")
    other = OwnChallenger(OwnModel("line", "guest_models:line", {"rate": 0.2}), "square")
    with pytest.raises(StateRefused, match="a model with other parameters"):
        other.take_back(decode_remembered(one.remembered(1)))
