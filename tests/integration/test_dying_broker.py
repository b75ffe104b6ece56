"""Workers whose brokers die: no worker dies with them, and every worker reports it, with or without
partitions."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import TracebackType

import forked
import pytest
from broker import Broker
from plants import Plant, Voice

from streamfl.runtime.bus import BusUnavailable, Outgoing, Step, Subscription, TopicSpec, connect

SCHEMES = ["kafka+librdkafka", "kafka"]
# `make kill-brokers` kills a hundred times, under many workers with both client libraries.
CAMPAIGN = os.environ.get("STREAMFL_TEST_KILLS")
KILLS, WORKERS, KILLED = (int(CAMPAIGN), 20, SCHEMES) if CAMPAIGN else (1, 6, SCHEMES[:1])
PATIENCE = 6
LONG_SECONDS = 600.0


OWN = {"the bus is unavailable", "the cluster does not describe this worker's topics and group"}


def from_libraries(voice: Voice) -> list[str]:
    """The log lines of the client libraries."""
    return [
        str(line["event"])
        for line in voice.lines()
        if line["level"] in ("warning", "error") and line["event"] not in OWN
    ]


class Workers:
    """Forks of one process that run a plant's settings file and look at the cluster every ``seconds``, within
    a ``with`` block."""

    def __init__(self, plant: Plant, count: int, seconds: float) -> None:
        self._command = [sys.executable, forked.__file__, str(plant.configuration), str(count), str(seconds)]
        self._ended = plant.configuration.with_suffix(".ended")
        self.voices = [Voice(plant.configuration, number) for number in range(count)]

    def __enter__(self) -> Workers:
        with self._ended.open("w") as ended:
            self._process = subprocess.Popen(self._command, stdout=ended, start_new_session=True)
        self.wait_until(lambda: all(one.begun() for one in self.voices))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def none_ended(self) -> None:
        told = self._ended.read_text()
        logs = [self.voices[int(line.split()[0])].log()[-2000:] for line in told.splitlines()]
        assert not told, (told, logs)
        assert self._process.poll() is None

    def wait_until(self, look: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LONG_SECONDS
        while not look():
            self.none_ended()
            if time.monotonic() > deadline:
                os.killpg(self._process.pid, signal.SIGUSR1)
                time.sleep(5.0)
                pytest.fail("\n\n".join(f"{one.page('readyz')}: {one.log()[-5000:]}" for one in self.voices))
            time.sleep(0.5)


@pytest.mark.parametrize("scheme", KILLED)
def test_a_dying_broker_takes_no_worker_with_it(tmp_path: Path, scheme: str) -> None:
    """Protects workers from their client library: an admin call of librdkafka ended the process (SIGABRT)
    when its broker died.

    They query their cluster every second. The default of 5 seconds would put most deaths between two queries.
    The broker stays away for longer than the timeout of a query.
    """
    chance = random.Random(33)
    with Broker() as broker:
        plant = Plant(tmp_path, broker, scheme, partitions=1, patience=PATIENCE)
        with Workers(plant, WORKERS, 1.0) as workers:
            for kill in range(1, KILLS + 1):
                time.sleep(2 + 3 * chance.random())
                broker.halt()
                time.sleep(PATIENCE + 3 * chance.random())
                workers.none_ended()
                broker.start()
                print(f"{kill} kills", flush=True)
            workers.none_ended()


@pytest.mark.parametrize(
    ("scheme", "hangs"), [(SCHEMES[0], False), (SCHEMES[1], True)], ids=["librdkafka-killed", "kafka-hangs"]
)
def test_every_worker_is_red_while_no_broker_answers(tmp_path: Path, scheme: str, hangs: bool) -> None:
    """Protects an alert on dead brokers: a librdkafka standby used to stay green, and active workers named
    another reason.

    Also protects the log: the client libraries get one line a broker and minute; there used to be thousands.
    """
    with Broker() as broker:
        plant = Plant(tmp_path, broker, scheme, patience=PATIENCE)
        with Workers(plant, 3, 5.0) as workers:

            def standbys() -> int:
                return sum(one.page("readyz")[1].startswith("ok, standby") for one in workers.voices)

            def green() -> bool:
                return all(one.page("readyz")[0] == 200 for one in workers.voices) and standbys() == 1

            def red() -> bool:
                pages = [one.page("readyz") for one in workers.voices]
                return all(
                    code == 503 and text.startswith("bus: no broker answers since ") for code, text in pages
                )

            workers.wait_until(green)
            if hangs:
                broker.stall()
            else:
                broker.halt()
            died = time.monotonic()
            before = [len(from_libraries(one)) for one in workers.voices]
            workers.wait_until(red)
            print(f"red after {time.monotonic() - died:.1f} s", workers.voices[0].page("readyz"), flush=True)
            if hangs:
                broker.resume()
            else:
                broker.start()
            back = time.monotonic()
            workers.wait_until(green)
            minutes = (time.monotonic() - died) / 60
            lines = [from_libraries(one)[told:] for one, told in zip(workers.voices, before, strict=True)]
            print(f"{[len(said) for said in lines]} lines in {minutes:.1f} minutes", flush=True)
            # A line that names no broker comes once for each kind, as the connections break. There used to be
            # thousands.
            assert all(len(said) <= 8 + minutes for said in lines), lines
            print(f"green again after {time.monotonic() - back:.1f} s", flush=True)


def test_a_group_is_seen_after_its_coordinator_died() -> None:
    """Protects standbys, which stayed red after an outage: the library kept asking the broker that used to
    coordinate their group, and took the refusal for a group without members.
    """
    name = f"samples-{uuid.uuid4().hex[:8]}"
    with Broker(nodes=3) as broker, closing(connect(broker.url)) as bus:
        bus.create([TopicSpec(name, 1, False)])
        bus.write([Outgoing(name, None, b"v", 0)])
        with closing(bus.session(Subscription(name, (name,)))) as session:

            def seen() -> bool:
                try:
                    if session.poll(0.2, 10).records:
                        session.commit(Step({(name, 0): 1}))
                    return bus.members(name) == 1 and bus.committed(name) == {(name, 0): 1}
                except BusUnavailable:
                    return False

            def wait() -> None:
                deadline = time.monotonic() + LONG_SECONDS
                while not seen():
                    assert time.monotonic() < deadline

            wait()
            admin = bus.admin  # type: ignore[attr-defined]
            broker.halt(admin._manager.run(admin._find_coordinator_id, name) - 1)
            wait()
