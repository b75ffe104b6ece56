"""The laws of the clock: times from a clock that was ahead delay nothing once the clock is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec
from msgspec.structs import replace

from streamfl.contract.role import Received, Rejection, Send
from streamfl.testing.subjects import RoleRun, Subject, Traffic, answers

__all__ = ["law_clock_ahead", "law_clock_is_right_again", "law_clock_jumps"]

# Seconds. Longer than any timeout of a role under these laws, but microseconds of such a time still fit into
# 53 bits.
AHEAD = 4e9
MOST_TICKS = 50


def law_clock_ahead(
    subject: Subject, traffic: Traffic, begin: int, end: int, records: bool, *, restart: bool
) -> None:
    """8. At a tick every remembered time that is ahead of now becomes now.

    The clock is far ahead from batch ``begin`` to before ``end``, then right again. After the tick the role
    never waits for the wrong time, and no remembered number is near that time.

    records: whether the records' timestamps are ahead too.
    restart: whether a restored role goes on after the clock is right.
    """
    run = RoleRun(subject, traffic)
    for place, (now, batch) in enumerate(traffic.batches[:end]):
        ahead = AHEAD if place >= begin else 0.0
        run.feed(now + ahead, [_written(one, ahead if records else 0.0) for one in batch])
        if run.role.wake_at is not None and run.role.wake_at <= now + ahead:
            run.feed(now + ahead, [])
    now, batch = traffic.batches[min(end, len(traffic.batches) - 1)]
    if restart:
        run = run.restored(now, traffic.batches[:end])
    if batch and end < len(traffic.batches):
        run.feed(now, batch)
    run.feed(now, [])
    for slot, value in run.state.items():
        wrong = [number for number in _numbers(value) if AHEAD / 2 < number < 2 * AHEAD]
        assert not wrong, f"{slot} remembers {wrong}, and the time is {now}"
    _settle(run, now)


def law_clock_jumps(subject: Subject, traffic: Traffic) -> None:
    """8. If a clock was ahead by less than the next timeout, it has no effect at all."""
    for place in range(1, len(traffic.batches) + 1):
        where = f"at batch {place}"
        runs = [RoleRun(subject, traffic).feed_all(traffic.batches[:place]) for _ in range(2)]
        now = traffic.batches[place - 1][0]
        for run in runs:
            run.feed(now, [])
        wake_at = runs[0].role.wake_at
        ahead = 3600.0 if wake_at is None else max(0.0, wake_at - now) / 2
        runs[0].feed(now, [])
        for time in (now + ahead, now):
            runs[1].feed(time, [])
        for run in runs:
            run.feed_all(traffic.batches[place:])
        steady, jumped = runs
        assert answers(steady.replies) == answers(jumped.replies), (
            f"{ahead} seconds ahead were answered {where}"
        )
        assert steady.state == jumped.state, f"{ahead} seconds ahead were remembered {where}"


def law_clock_is_right_again(subject: Subject, traffic: Traffic, begin: int, end: int) -> None:
    """8. If the clock was ahead for some messages, and no tick came meanwhile, the role in the end sends no
    fewer messages.

    Messages are counted by channel, key and partition, except on ``subject.paced``. The role may send more:
    entries that were due by the right clock count as new from the tick that sets the clock back.
    """
    counts = []
    for ahead in (0.0, AHEAD):
        run = RoleRun(subject, traffic)
        for place, (now, batch) in enumerate(traffic.batches[: end + 1]):
            run.feed_some(now + (ahead if begin <= place < end else 0.0), batch)
        now = traffic.batches[min(end, len(traffic.batches) - 1)][0]
        run.feed(now, [])
        _settle(run, now)
        sent = (
            (reply.channel, reply.key, reply.partition) for reply in run.replies if isinstance(reply, Send)
        )
        refused = (
            ("refused", reply.error.reason, None) for reply in run.replies if isinstance(reply, Rejection)
        )
        counts.append(Counter(place for place in chain(sent, refused) if place[0] not in subject.paced))
    right, ahead_of_it = counts
    assert not right - ahead_of_it, f"by a clock that is right came {right - ahead_of_it} more"


def _settle(run: RoleRun, now: float) -> None:
    """Feed the requested ticks. None of them may be at a time of the wrong clock."""
    for _ in range(MOST_TICKS):
        wake_at = run.role.wake_at
        if wake_at is None:
            return
        assert wake_at < AHEAD / 2, f"at {now} the role waits until {wake_at}"
        now = max(now, wake_at)
        run.feed(now, [])


def _written(received: Received, ahead: float) -> Received:
    return replace(received, record=replace(received.record, timestamp=received.record.timestamp + ahead))


def _numbers(value: bytes) -> Iterator[float]:
    """All numbers of a remembered value, if it is MessagePack. Arrays of raw numbers hold no times."""
    try:
        content = msgspec.msgpack.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    waiting: list[Any] = [content]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, (list, tuple)):
            waiting += one
        elif isinstance(one, (int, float)):
            yield one
