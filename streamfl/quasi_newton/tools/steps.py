"""Measures the seconds of a federation's work, by kind of computation. Roles do not know of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from streamfl.contract.role import Work
from streamfl.quasi_newton.encryption.fixed_point import FixedPoint
from streamfl.quasi_newton.encryption.randomness import RandomnessContext
from streamfl.quasi_newton.encryption.scheme import Scheme, scheme_of
from streamfl.quasi_newton.training import background_tasks
from streamfl.runtime.pool import Inline

__all__ = ["STEPS", "MeasuredWork", "Seconds"]

STEPS = ("encrypt", "add", "multiply", "decrypt", "align")


class Seconds:
    """Processor seconds of this process, by step. ``encrypt`` includes blinding and masks."""

    def __init__(self) -> None:
        self._spent = dict.fromkeys(STEPS, 0.0)
        self._begun = time.process_time()

    @contextmanager
    def of(self, step: str) -> Iterator[None]:
        """Count the time in the context as this step's."""
        begun = time.process_time()
        try:
            yield
        finally:
            self._spent[step] += time.process_time() - begun

    def by_step(self) -> dict[str, float]:
        """Seconds by step. ``rest``: all else that the process did, such as messages and the data set."""
        rest = time.process_time() - self._begun - sum(self._spent.values())
        return {**self._spent, "rest": max(0.0, rest)}


class MeasuredWork(Inline):
    """Does the work in the loop, and measures it."""

    def __init__(self, seconds: Seconds) -> None:
        super().__init__()

        # One process has the schemes of all members here. Each has a table that takes long to make, so all
        # are cached.
        schemes: dict[tuple[bytes, bytes], Scheme] = {}

        def made(modulus: bytes, secret: bytes) -> Scheme:
            if (modulus, secret) not in schemes:
                schemes[modulus, secret] = _Measured(scheme_of(modulus, secret), seconds)
            return schemes[modulus, secret]

        self._seconds = seconds
        # These tasks consist of several steps. All others are one step.
        self._parted: dict[Callable[[bytes], bytes], Callable[[bytes], bytes]] = {
            function: lambda content, function=function: function(content, made)  # type: ignore[misc]
            for function in (background_tasks.encrypted, background_tasks.multiplied, background_tasks.added)
        }
        self._whole: dict[Callable[[bytes], bytes], str] = {background_tasks.opened: "decrypt"}
        self._whole |= dict.fromkeys(
            (background_tasks.blinded, background_tasks.aligned, background_tasks.matched), "align"
        )

    def start(self, work: Sequence[Work]) -> None:
        super().start(
            [
                Work(one.channel, one.partition, one.key, self._measured(one.function), one.content)
                for one in work
            ]
        )

    def _measured(self, function: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        if function in self._parted:
            return self._parted[function]
        step = self._whole.get(function)
        if step is None:
            return function

        def measured(content: bytes) -> bytes:
            with self._seconds.of(step):
                return function(content)

        return measured


class _Measured:
    """A scheme that measures each step."""

    def __init__(self, scheme: Scheme, seconds: Seconds) -> None:
        self._scheme = scheme
        self._seconds = seconds

    @property
    def unit_bytes(self) -> int:
        return self._scheme.unit_bytes

    def check(self, content: bytes, count: int, kind: FixedPoint) -> None:
        self._scheme.check(content, count, kind)

    def units(self, count: int, kind: FixedPoint) -> int:
        return self._scheme.units(count, kind)

    def encrypt(self, numbers: Sequence[int], place: RandomnessContext) -> bytes:
        with self._seconds.of("encrypt"):
            return self._scheme.encrypt(numbers, place)

    def encrypt_packed(self, numbers: Sequence[int], kind: FixedPoint, place: RandomnessContext) -> bytes:
        with self._seconds.of("encrypt"):
            return self._scheme.encrypt_packed(numbers, kind, place)

    def hide(self, vector: bytes, place: RandomnessContext) -> bytes:
        with self._seconds.of("encrypt"):
            return self._scheme.hide(vector, place)

    def mask(self, vector: bytes, place: RandomnessContext) -> tuple[bytes, bytes]:
        with self._seconds.of("encrypt"):
            return self._scheme.mask(vector, place)

    def add(self, vectors: Sequence[bytes], own: Sequence[int]) -> bytes:
        with self._seconds.of("add"):
            return self._scheme.add(vectors, own)

    def add_packed(self, vectors: Sequence[bytes], own: Sequence[int], kind: FixedPoint) -> bytes:
        with self._seconds.of("add"):
            return self._scheme.add_packed(vectors, own, kind)

    def product(self, vector: bytes, matrix: NDArray[Any], kind: FixedPoint) -> bytes:
        with self._seconds.of("multiply"):
            return self._scheme.product(vector, matrix, kind)

    def opened(
        self, residues: bytes, count: int, kind: FixedPoint, place: RandomnessContext, digest: bytes
    ) -> list[int]:
        return self._scheme.opened(residues, count, kind, place, digest)
