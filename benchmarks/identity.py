"""What keys of members cost: a seal beside a signature, for an update and for a commit of them, and a whole client."""

from __future__ import annotations

import hashlib
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import end_to_end
from benchmarks.client_core import DIMENSION
from benchmarks.figures import Figure, best_seconds
from streamfl.identity import Identity, Member, Members, PrivateKey, make_key_file, write_members
from streamfl.role import Record, TopicSpec
from streamfl.runtime.bus import connect

__all__ = ["measure"]

# Bytes of an update: one kernel of the paper's preset, five of the default.
UPDATES = {"one kernel": 880, "five kernels": 4_100}
COMMIT, REPEATS, RUNS = 500, 5, 3


def measure() -> Iterator[Figure]:
    yield from _updates()
    yield from _end_to_end()


def _updates() -> Iterator[Figure]:
    site, server = PrivateKey.generate(), PrivateKey.generate()
    members = Members(
        "bench",
        (
            Member("site", ("pofmkl-client",), (site.public.text,), ("*",)),
            Member("server", ("pofmkl-server",), (server.public.text,)),
        ),
    )
    seal = Identity((site,), members, "pofmkl-client").seal("bench.updates", "pofmkl-server")
    open_ = Identity((server,), members, "pofmkl-server").open("bench.updates", "pofmkl-client")
    generator = np.random.default_rng(0)
    for name, size in UPDATES.items():
        values = [generator.bytes(size) for _ in range(COMMIT)]

        def seals(_: int, values: list[bytes] = values) -> None:
            for value in values:
                open_(Record("bench.updates", 0, 0, b"client-7", value, seal(b"client-7", value, 0)))

        def signatures(_: int, values: list[bytes] = values) -> None:
            for value in values:
                site.public.verifies(site.sign(value), value)

        def one_signature(_: int, values: list[bytes] = values) -> None:
            # The least that it can be: a digest of each update at both ends, all of them under one signature.
            statement = b"".join([hashlib.blake2b(value, digest_size=16).digest() for value in values])
            signature = site.sign(statement)
            again = b"".join([hashlib.blake2b(value, digest_size=16).digest() for value in values])
            site.public.verifies(signature, again)

        sealing, signing, once = (1e6 * taken / COMMIT for taken in best_seconds([seals, signatures, one_signature], REPEATS))
        yield Figure(f"identity: seal and open an update of {name}", sealing, "us")
        yield Figure(f"identity: sign and verify an update of {name}", signing, "us")
        yield Figure(f"identity: the same, one signature for {COMMIT} updates", once, "us")
    alone = [generator.bytes(UPDATES["one kernel"])]
    (taken,) = best_seconds([lambda _: site.public.verifies(site.sign(alone[0]), alone[0])], 200)
    yield Figure("identity: one signature for a commit of one update", 1e6 * taken, "us")


def _end_to_end() -> Iterator[Figure]:
    # The broker lives with the tests that also need it; neither is installed.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from broker import Broker  # type: ignore[import-not-found]

    features = ", ".join(f'"x{i}"' for i in range(DIMENSION))
    with Broker() as broker, tempfile.TemporaryDirectory() as folder:
        bus = connect(broker.url)
        bus.create([TopicSpec("samples", end_to_end.PARTITIONS, False)])
        records = end_to_end.samples()
        for start in range(0, len(records), 10_000):
            bus.write(records[start : start + 10_000])
        for scheme in ("kafka", "kafka+librdkafka"):
            rates: dict[bool, list[float]] = {False: [], True: []}
            for run in range(RUNS):
                for keys in rates:
                    name = f"{scheme.partition('+')[2] or scheme}-{'keys' if keys else 'plain'}-{run}"
                    text = end_to_end.CONFIGURATION.format(
                        name=name, clients=end_to_end.CLIENTS, url=f"{scheme}://{broker.address}", features=features
                    )
                    if keys:
                        text = _with_keys(text, Path(folder), name)
                    rates[keys].append(end_to_end.streamfl_rate(f"{name}.predictions", [text], bus))
            plain, keyed = (statistics.median(rates[keys]) for keys in (False, True))
            yield Figure(f"identity: samples/s of {scheme} without keys, median of {RUNS}", plain, "1/s")
            yield Figure(f"identity: samples/s of {scheme} with keys, median of {RUNS}", keyed, "1/s")
            yield Figure(f"identity: {scheme} with keys against without", keyed / plain, "x", goal=0.85)
        bus.close()


def _with_keys(text: str, folder: Path, name: str) -> str:
    """The configuration of a member with a key, and its files."""
    site, server = (make_key_file(folder / f"{name}-{one}.key") for one in ("site", "server"))
    members = (
        Member("site", ("pofmkl-client",), (site.public.text,), ("*",)),
        Member("server", ("pofmkl-server",), (server.public.text,)),
    )
    write_members(folder / f"{name}.toml", Members(name, members))
    text = text.replace("[bus]", f'members = "{folder}/{name}.toml"\n[bus]')
    return f'{text}[identity]\nkey_file = "{folder}/{name}-site.key"\n'
