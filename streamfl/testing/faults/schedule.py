"""Virtual time, and processes that run one at a time. The seed decides the order of events, not the
machine."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from types import TracebackType

from streamfl.contract.seeding import rng_for

__all__ = ["Changed", "Killed", "Process", "Scheduler"]

BEGIN = 1_000.0
MOST_EVENTS = 30_000


class Killed(BaseException):
    """The process ends at once. Nobody may catch this and go on, because nothing goes on after kill -9."""


class Scheduler:
    """Runs events in order of virtual time. Events at the same time run in an order drawn from the seed."""

    def __init__(self, seed: int) -> None:
        self.now = BEGIN
        self.current: Process | None = None
        self.ending = False
        self.events = 0
        self.processes: list[Process] = []
        # Held while a process runs.
        self.turn = threading.Lock()
        self.turn.acquire()
        self._events: list[tuple[float, float, int, Callable[[], None]]] = []
        self._draws = rng_for(seed, "simulation", "order")
        self._number = 0

    def clock(self) -> float:
        """Virtual seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let this much time pass for the calling process."""
        assert self.current is not None
        self.current.wait(max(seconds, 1e-6), wakes=False)

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (max(when, self.now), self._draws.random(), self._number, action))

    def spawn(self, name: str, body: Callable[[], None]) -> Process:
        process = Process(self, name, body)
        self.processes.append(process)
        self.at(self.now + 1e-3 * self._draws.random(), process.resume)
        return process

    def wake(self) -> None:
        """Something has changed. Each process that waits for a change looks again, after a short random
        time."""
        for process in self.processes:
            if process.wakes:
                self.at(self.now + 2e-3 * self._draws.random(), process.resumption())

    def run(self, until: float) -> None:
        """Let time pass until ``until``. Errors of a process are raised here."""
        while self._events and self._events[0][0] <= until:
            self.events += 1
            if self.events > MOST_EVENTS:
                raise RuntimeError(
                    f"more than {MOST_EVENTS} events at {self.now:.3f}: a process goes round without end"
                )
            self.now, _, _, action = heapq.heappop(self._events)
            action()
        self.now = until

    def close(self) -> None:
        """End every process."""
        self.ending = True
        for process in self.processes:
            process.resume()


class Process:
    """A thread. It runs only between the scheduler's resume and its own next wait."""

    def __init__(self, scheduler: Scheduler, name: str, body: Callable[[], None]) -> None:
        self.name = name
        self.wakes = False
        self._scheduler = scheduler
        self._body = body
        self._turn = threading.Lock()
        self._turn.acquire()
        self._waits = 0
        self._killed = False
        self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wait(self, seconds: float, wakes: bool) -> None:
        """Let others run for ``seconds``; with ``wakes`` only until something changes. Called by the process
        itself."""
        self._scheduler.at(self._scheduler.now + seconds, self.resumption())
        self.wakes = wakes
        self._scheduler.turn.release()
        self._turn.acquire()
        self.wakes = False
        self._waits += 1
        if self._scheduler.ending or self._killed:
            self._killed = False
            raise Killed

    @property
    def idle(self) -> bool:
        """Whether it waits for something to change, or has ended."""
        return self.wakes or self._ended

    def kill(self) -> None:
        """End it at its present wait."""
        self._killed = True
        self._scheduler.at(self._scheduler.now, self.resumption())

    def resumption(self) -> Callable[[], None]:
        """A function that ends the present wait, but no later one."""
        waits = self._waits

        def resume() -> None:
            if self._waits == waits:
                self.resume()

        return resume

    def resume(self) -> None:
        """Let it run until it waits again. Called by the scheduler."""
        if self._ended:
            return
        self._scheduler.current = self
        self._turn.release()
        self._scheduler.turn.acquire()
        self._scheduler.current = None
        self._report()

    def _report(self) -> None:
        """Raise the process's error on the scheduler's thread."""
        if self._ended:
            self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if not self._scheduler.ending:
                self._body()
        except Killed:
            pass
        except BaseException as error:
            self._error = error
        self._ended = True
        self._scheduler.turn.release()


class Changed(threading.Condition):
    """The bus's condition variable in virtual time. One process runs at a time, so there is nothing to
    lock."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    def __enter__(self) -> bool:
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def wait(self, timeout: float | None = None) -> bool:
        assert self._scheduler.current is not None
        assert timeout is not None
        self._scheduler.current.wait(timeout, wakes=True)
        return True

    def notify_all(self) -> None:
        self._scheduler.wake()
