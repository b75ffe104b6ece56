"""What keys of members cost: a seal beside a signature, for an update and for a commit of them, and a whole
client."""

from __future__ import annotations

import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks import end_to_end, server
from benchmarks.broker import running_broker
from benchmarks.figures import Figure, size
from benchmarks.processes import children_seconds
from streamfl.configuration.settings import IdentitySection
from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import Record
from streamfl.identity import (
    Identity,
    Member,
    Members,
    PrivateKey,
    make_key_file,
    read_key_file,
    read_members,
    write_members,
)
from streamfl.runtime.bus import Bus, connect

# Bytes of an update: one kernel of the paper's preset, five of the default.
UPDATES = {"one kernel": 880, "five kernels": 4_100}
COMMIT, REPEATS, RUNS = 100, size(100, 1), size(3, 1)
SCHEMES = size(("kafka", "kafka+librdkafka"), ("kafka",))


def measure() -> Iterator[Figure]:
    yield from _updates()
    with running_broker() as broker, tempfile.TemporaryDirectory() as folder:
        bus = connect(broker.url)
        yield from _server(bus, Path(folder))
        yield from _end_to_end(bus, broker.address, Path(folder))
        bus.close()


def _updates() -> Iterator[Figure]:
    site, server = PrivateKey.generate(), PrivateKey.generate()
    members = _members("bench", site, server)
    seal = Identity((site,), members, "pofmkl-client").seal("bench.updates", "pofmkl-server")
    open_ = Identity((server,), members, "pofmkl-server").open("bench.updates", "pofmkl-client")
    generator = np.random.default_rng(0)
    for name, length in UPDATES.items():
        values = [generator.bytes(length) for _ in range(COMMIT)]

        def seals(values: list[bytes] = values) -> None:
            for value in values:
                open_(Record("bench.updates", 0, 0, b"client-7", value, seal(b"client-7", value, 0)))

        def signatures(values: list[bytes] = values) -> None:
            for value in values:
                site.public.verifies(site.sign(value), value)

        def one_signature(values: list[bytes] = values) -> None:
            # The least that it can be: a digest of each update at both ends, all of them under one signature.
            statement = b"".join([hashlib.blake2b(value, digest_size=16).digest() for value in values])
            signature = site.sign(statement)
            again = b"".join([hashlib.blake2b(value, digest_size=16).digest() for value in values])
            site.public.verifies(signature, again)

        for what, work in (
            (f"seal and open an update of {name}", seals),
            (f"sign and verify an update of {name}", signatures),
            (f"the same, one signature for {COMMIT} updates", one_signature),
        ):
            yield Figure(f"identity: {what}", _microseconds(work) / COMMIT, "us")
    alone = generator.bytes(UPDATES["one kernel"])
    taken = _microseconds(lambda: site.public.verifies(site.sign(alone), alone))
    yield Figure("identity: one signature for a commit of one update", taken, "us")


def _microseconds(work: Callable[[], object]) -> float:
    """Of the processor, the least of many times: what else the machine does is not counted."""
    best = float("inf")
    for _ in range(REPEATS):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return 1e6 * best


def _server(bus: Bus, folder: Path) -> Iterator[Figure]:
    """The processor's time of a server's worker, its client library included."""
    taken: dict[bool, list[float]] = {False: [], True: []}
    for run in range(RUNS):
        for keys in taken:
            name = f"server-{'keys' if keys else 'plain'}-{run}"
            settings = server.settings_of(name)
            if keys:
                _make_keys(folder, name)
                section = IdentitySection(key_file=f"{folder}/{name}-server.key")
                federation = settings.federation.model_copy(update={"members": f"{folder}/{name}.toml"})
                settings = settings.model_copy(update={"identity": section, "federation": federation})
                site = Identity(
                    read_key_file(folder / f"{name}-site.key"),
                    read_members(folder / f"{name}.toml"),
                    "pofmkl-client",
                )
                server.write_updates(bus, settings, site.seal(f"{name}.updates", "pofmkl-server"))
            else:
                server.write_updates(bus, settings)
            taken[keys].append(1e6 * server.server_seconds(bus, settings, time.process_time) / server.UPDATES)
    plain, keyed = (min(taken[keys]) for keys in (False, True))
    yield Figure("identity: processor's time of the server an update, without keys", plain, "us")
    yield Figure("identity: processor's time of the server an update, with keys", keyed, "us")


def _end_to_end(bus: Bus, address: str, folder: Path) -> Iterator[Figure]:
    bus.create([TopicSpec("samples", end_to_end.PARTITIONS, False)])
    end_to_end.write_samples(bus)
    for scheme in SCHEMES:
        rates: dict[bool, list[float]] = {False: [], True: []}
        taken: dict[bool, list[float]] = {False: [], True: []}
        for run in range(RUNS):
            for keys in rates:
                name = f"{scheme.partition('+')[2] or scheme}-{'keys' if keys else 'plain'}-{run}"
                text = end_to_end.configuration(name, f"{scheme}://{address}")
                if keys:
                    _make_keys(folder, name)
                    text = text.replace("[bus]", f'members = "{folder}/{name}.toml"\n[bus]')
                    text += f'[identity]\nkey_file = "{folder}/{name}-site.key"\n'
                before = children_seconds()
                rates[keys].append(end_to_end.streamfl_rate(f"{name}.predictions", [text], bus))
                seconds = children_seconds() - before
                taken[keys].append(1e6 * seconds / end_to_end.SAMPLES)
        plain, keyed = (statistics.median(rates[keys]) for keys in (False, True))
        yield Figure(f"identity: samples/s of {scheme} without keys, median of {RUNS}", plain, "1/s")
        yield Figure(f"identity: samples/s of {scheme} with keys, median of {RUNS}", keyed, "1/s")
        yield Figure(f"identity: {scheme} with keys against without", keyed / plain, "x", goal=0.85)
        plain, keyed = (min(taken[keys]) for keys in (False, True))
        yield Figure(f"identity: processor's time of {scheme} a sample, without keys", plain, "us")
        yield Figure(f"identity: processor's time of {scheme} a sample, with keys", keyed, "us")
        yield Figure(
            f"identity: the latter against the former, {scheme}", keyed / plain, "x", goal=1.15, at_most=True
        )


def _make_keys(folder: Path, name: str) -> None:
    """A federation's members' file and the key files of its site and its server."""
    site, server_key = (make_key_file(folder / f"{name}-{one}.key") for one in ("site", "server"))
    write_members(folder / f"{name}.toml", _members(name, site, server_key))


def _members(federation: str, site: PrivateKey, server_key: PrivateKey) -> Members:
    return Members(
        federation,
        (
            Member("site", ("pofmkl-client",), (site.public.text,), ("*",)),
            Member("server", ("pofmkl-server",), (server_key.public.text,)),
        ),
    )
