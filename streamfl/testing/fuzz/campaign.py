"""Sends many wrong messages, and reports what happened."""

from __future__ import annotations

import resource
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from types import FrameType

from streamfl.terminal.console import print_text, say
from streamfl.testing.fuzz.mutations import FuzzedRecord, Mutator
from streamfl.testing.fuzz.systems import targets

__all__ = ["CampaignReport", "Defect", "run"]

BLOCK = 500
ENOUGH_DEFECTS = 20
# Much longer than a block takes: a block that needs more hangs.
HANGING_SECONDS = 300


class Hanging(Exception):
    """A block of messages does not end."""


@dataclass(frozen=True)
class Defect:
    """An error that should not have been raised. ``target``, ``block`` and the seed reproduce it."""

    target: str
    block: int
    place: str
    error: str
    message: FuzzedRecord | None


@dataclass
class CampaignReport:
    """Results of a campaign.

    taken: messages by target.
    refused: refusals by target and reason.
    memory: peak memory so far in MiB, after each round.
    """

    seconds: float = 0.0
    taken: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    defects: list[Defect] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)

    @property
    def messages(self) -> int:
        return self.taken.total()

    def growth(self) -> float:
        """Growth of the process in MiB after the first fifth of the rounds."""
        return self.memory[-1] - self.memory[len(self.memory) // 5]


def run(messages: int, seed: int, only: str = "") -> CampaignReport:
    """Send at least ``messages`` wrong messages, a block to each target in turn. The same seed gives the same
    messages.

    Every block has new roles, so target, block and seed are enough to reproduce a defect. ValueError if no
    target's name contains ``only``.
    """
    report, began, block = CampaignReport(), time.monotonic(), 0
    with warnings.catch_warnings(), _hanging_raises():
        warnings.simplefilter("error")
        # What others left to the garbage collector may be collected here.
        warnings.simplefilter("ignore", ResourceWarning)
        while report.messages < messages and len(report.defects) < ENOUGH_DEFECTS:
            random = Random(f"{seed}/{block}")
            for target in targets(random, only):
                mutator, message = Mutator(random, target.messages), None
                signal.alarm(HANGING_SECONDS)
                try:
                    for _ in range(BLOCK):
                        message = mutator.message()
                        report.taken[target.name] += 1
                        reason = target.take(message)
                        if reason is not None:
                            report.refused[target.name, reason] += 1
                    message = None
                    target.finish()
                except Exception as error:
                    frames = traceback.extract_tb(error.__traceback__)
                    place = next(
                        (frame for frame in reversed(frames) if "/streamfl" in frame.filename), frames[-1]
                    )
                    where = f"{place.filename.rpartition('/')[2]}:{place.lineno} {place.name}"
                    text = f"{type(error).__name__}: {str(error)[:200]}"
                    report.defects.append(Defect(target.name, block, where, text, message))
            if not report.taken:
                raise ValueError(f"no target is called like {only!r}")
            report.memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
            block += 1
    report.seconds = time.monotonic() - began
    return report


@contextmanager
def _hanging_raises() -> Iterator[None]:
    def hanging(_number: int, _frame: FrameType | None) -> None:
        raise Hanging(f"a block of {BLOCK} messages takes longer than {HANGING_SECONDS} s")

    before = signal.signal(signal.SIGALRM, hanging)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def print_report(report: CampaignReport, seed: int) -> None:
    width = max(map(len, report.taken), default=0)
    for name, count in report.taken.items():
        reasons = {reason: number for (target, reason), number in report.refused.items() if target == name}
        listed = ", ".join(
            f"{reason} {number}" for reason, number in sorted(reasons.items(), key=lambda item: -item[1])
        )
        print_text(f"{name:{width}} {count:8} taken, {sum(reasons.values()):8} refused: {listed}")
    print_text(
        f"{report.messages} malformed messages in {report.seconds:.0f} s, seed {seed}: {len(report.defects)} "
        f"defects, {report.refused.total()} refused; memory {report.memory[-1]:.0f} MiB, "
        f"{report.growth():+.1f} MiB since the first fifth"
    )
    for defect in report.defects:
        say(f"DEFECT {defect.target}, block {defect.block}: {defect.error} at {defect.place}")
        say(f"  {str(defect.message)[:1000]}")
