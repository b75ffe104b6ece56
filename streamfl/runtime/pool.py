"""Does a role's work: computation that takes seconds, beside the loop that keeps the worker in its group."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Protocol

from streamfl.contract.role import Work

__all__ = ["Inline", "Pool", "Processes", "WorkEnded", "WorkFailed"]


class WorkFailed(Exception):
    """A function of a role raised an error, or did not return bytes."""


class WorkEnded(WorkFailed):
    """A process ended during its work: it was killed, perhaps for lack of memory."""


class Pool(Protocol):
    """Does the pieces of work of one start at a time. ``done``: the number of finished pieces."""

    done: int

    def start(self, work: Sequence[Work]) -> None:
        """Begin this work. Earlier work has to be finished, or given up."""

    def wait(self, seconds: float) -> bool:
        """Wait for at most ``seconds``; True once all is finished. WorkFailed names the piece that cannot be
        done."""

    def results(self) -> Sequence[bytes]:
        """The result of each piece, in the order of the work."""

    def seconds(self) -> Sequence[float]:
        """How long each piece took, from its begin until its result was received, in the same order."""

    def give_up(self) -> None:
        """Abandon the work; its results are not needed any more."""

    def close(self) -> None:
        """Free the pool's resources."""


class Inline:
    """Does all work at once in the loop itself: for tests, and for callers without other members that
    wait."""

    def __init__(self) -> None:
        self.done = 0
        self._work: Sequence[Work] = ()
        self._results: list[bytes] = []
        self._taken: list[float] = []

    def start(self, work: Sequence[Work]) -> None:
        self.done, self._work, self._results, self._taken = 0, work, [], []

    def wait(self, seconds: float) -> bool:
        for work in self._work:
            begun = time.monotonic()
            self._results.append(_checked(work.function(work.content)))
            self._taken.append(time.monotonic() - begun)
        self.done = len(self._results)
        return True

    def results(self) -> Sequence[bytes]:
        return self._results

    def seconds(self) -> Sequence[float]:
        return self._taken

    def give_up(self) -> None:
        self._work, self._results = (), []

    def close(self) -> None:
        self.give_up()


@dataclass
class _Hand:
    """A process. number: the piece that it works on; None: it is free. begun: when it got the piece."""

    process: BaseProcess
    connection: Connection
    number: int | None = None
    begun: float = 0.0


class Processes:
    """Processes of this machine, started when there is work for the first time.

    count: the number of processes; None: one for each processor. Giving up work kills the processes that do
    it.
    """

    def __init__(self, count: int | None = None) -> None:
        self.done = 0
        self._count = count or os.cpu_count() or 1
        # A forked process may hang on a lock that another thread of its parent held, and Kafka's clients have
        # threads.
        self._context = multiprocessing.get_context("spawn")
        self._hands: list[_Hand] = []
        self._work: Sequence[Work] = ()
        self._waiting: deque[int] = deque()
        self._results: list[bytes] = []
        self._seconds: list[float] = []

    def start(self, work: Sequence[Work]) -> None:
        self.done, self._work, self._results, self._seconds = 0, work, [b""] * len(work), [0.0] * len(work)
        self._waiting = deque(range(len(work)))
        # A free process may have been killed meanwhile.
        for hand in [hand for hand in self._hands if not hand.process.is_alive()]:
            self._end(hand)
        while len(self._hands) < min(self._count, len(work)):
            here, there = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(there,), name="work", daemon=True)
            process.start()
            there.close()
            self._hands.append(_Hand(process, here))
        for hand in self._hands:
            self._deal(hand)

    def wait(self, seconds: float) -> bool:
        busy = {hand.connection: hand for hand in self._hands if hand.number is not None}
        for connection in wait(list(busy), seconds) if busy else ():
            hand = next(hand for known, hand in busy.items() if known is connection)
            assert hand.number is not None
            try:
                succeeded, content = hand.connection.recv()
            except (EOFError, OSError):
                hand.process.join(1.0)
                raise WorkEnded(
                    f"{self._name(hand.number)} ended its process with exit code {hand.process.exitcode}"
                ) from None
            if not succeeded:
                raise WorkFailed(f"{self._name(hand.number)} raised {content}")
            self._results[hand.number], self._seconds[hand.number] = content, time.monotonic() - hand.begun
            self.done += 1
            hand.number = None
            self._deal(hand)
        return self.done == len(self._work)

    def results(self) -> Sequence[bytes]:
        return self._results

    def seconds(self) -> Sequence[float]:
        return self._seconds

    def give_up(self) -> None:
        self._waiting.clear()
        self._work, self._results = (), []
        for hand in [hand for hand in self._hands if hand.number is not None]:
            self._end(hand)

    def close(self) -> None:
        self.give_up()
        for hand in list(self._hands):
            self._end(hand)

    def _deal(self, hand: _Hand) -> None:
        if self._waiting:
            hand.number, hand.begun = self._waiting.popleft(), time.monotonic()
            work = self._work[hand.number]
            try:
                hand.connection.send((work.function, work.content))
            except OSError:
                raise WorkEnded(f"{self._name(hand.number)} found its process ended") from None
            except Exception as error:
                # For instance a function that no other process can import, such as a lambda.
                raise WorkFailed(f"{self._name(hand.number)} cannot be sent to a process: {error}") from None

    def _end(self, hand: _Hand) -> None:
        self._hands.remove(hand)
        hand.process.kill()
        hand.process.join()
        hand.process.close()
        hand.connection.close()

    def _name(self, number: int) -> str:
        work = self._work[number]
        function = work.function
        name = getattr(function, "__qualname__", None)
        return f"the work {work.key!r}, {f'{function.__module__}.{name}' if name else repr(function)},"


def _checked(result: object) -> bytes:
    if not isinstance(result, bytes):
        raise TypeError(f"work gives bytes, not {type(result).__name__}")
    return result


def _serve(connection: Connection) -> None:
    """The loop of a process of the pool, until its worker is gone."""
    # A signal to the process group reaches all processes, but only the worker may end this one.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while True:
        try:
            function, content = connection.recv()
        except (EOFError, OSError):
            return
        try:
            answer: tuple[bool, bytes | str] = (True, _checked(function(content)))
        except Exception as error:
            answer = (False, _told(error))
        try:
            connection.send(answer)
        except OSError:
            return


def _told(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
