"""Checks what must hold in any run, from the topics and from a worker's metrics."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from pofmkl.proof.scenario import Scenario

from streamfl.contract.role import Record
from streamfl.encoding.wire import decode_array, encoded_size
from streamfl.pofmkl.client.bandwidth import UpdateCost
from streamfl.pofmkl.client.client_record import ClientRecord
from streamfl.pofmkl.learning.learner import Batch
from streamfl.pofmkl.messages import MARKER_KEY, UPDATE, KernelParameters, ShardVersion, Update, decode_model
from streamfl.pofmkl.roles import learner as learner_of
from streamfl.pofmkl.roles import server_step
from streamfl.pofmkl.server.members import MemberState
from streamfl.pofmkl.state import BOOK, ROUND, SILENCE
from streamfl.roles.rhythm import Rhythm
from streamfl.runtime.bus import Bus
from streamfl.runtime.remembered_positions import POSITION_KEY
from streamfl.state.state_settings import STATE_SETTINGS_KEY
from streamfl.testing.faults.clients import identity
from streamfl.testing.faults.cluster import FaultyBus
from streamfl.testing.faults.observed_messages import require

__all__ = ["check_alike", "check_outcome", "check_said"]

# Samples that come together are summed in another order than single ones, in single precision.
ROUNDING = 5e-5


class PredictionRecord(msgspec.Struct):
    client: str
    sample: str
    prediction: float
    model_version: int | tuple[int, ...]
    label: float | None

    @property
    def versions(self) -> tuple[int, ...]:
        return self.model_version if isinstance(self.model_version, tuple) else (self.model_version,)


def _prediction(record: Record) -> PredictionRecord:
    return msgspec.json.decode(record.value or b"", type=PredictionRecord)


def check_said(
    bus: FaultyBus, scenario: Scenario
) -> tuple[dict[str, list[PredictionRecord]], list[list[Update]]]:
    """Checks what clients send, even without a server: counts, order, versions, budgets. Returns predictions
    and updates."""
    name = scenario.settings.federation.name
    letters = [dict(letter.headers)["text"].decode() for letter in bus.read(f"{name}.dead-letters")]
    require(not letters, f"{len(letters)} records were refused: {letters[:1]}")
    predictions = check_predictions(bus, scenario)
    heard = check_updates(bus, scenario)
    check_budget(bus, scenario)
    return predictions, heard


def check_outcome(bus: FaultyBus, scenario: Scenario) -> None:
    """Checks counts, order, versions, byte budgets, and a replay of every client and the server."""
    predictions, heard = check_said(bus, scenario)
    models = check_model(bus, scenario, heard)
    if scenario.late_labels:
        check_join(bus, scenario)
    if scenario.settings.bus.processing_guarantee == "exactly_once":
        check_taught(bus, scenario, predictions)
        # With late labels, or when a patience ends, the topics do not show what a client knew when it
        # predicted.
        if scenario.patient and not scenario.late_labels:
            check_replay(scenario, predictions, models)


def check_predictions(bus: Bus, scenario: Scenario) -> dict[str, list[PredictionRecord]]:
    """Every sample is predicted once (with at_least_once: at least once), in order, on versions that never go
    back."""
    by_client: dict[str, list[PredictionRecord]] = defaultdict(list)
    for record in bus.read(f"{scenario.settings.federation.name}.predictions"):
        by_client[_prediction(record).client].append(_prediction(record))
    learning = scenario.settings.learning
    per_version = {"lockstep": 1, "bounded": learning.max_staleness, "async": None}[learning.staleness]
    for client, readings in scenario.samples.items():
        expected = [reading.content["id"] for reading in readings]
        found = [prediction.sample for prediction in by_client[client]]
        if scenario.settings.bus.processing_guarantee == "at_least_once":
            require(
                set(found) == set(expected),
                f"{client}: samples never predicted: {sorted(set(expected) - set(found))}",
            )
            continue
        twice = [sample for sample, count in Counter(found).items() if count > 1]
        require(not twice, f"{client}: samples predicted more than once: {twice}")
        require(found == expected, f"{client}: predicted {found}, written {expected}")
        for before, after in zip(by_client[client], by_client[client][1:], strict=False):
            back = any(new < old for old, new in zip(before.versions, after.versions, strict=True))
            require(
                not back,
                f"{client}: {after.sample} on version {after.versions}, the sample before on "
                f"{before.versions}",
            )
        taken = Counter(
            prediction.versions for prediction in by_client[client] if prediction.label is not None
        )
        if per_version is not None:
            most = max(taken.values(), default=0)
            require(
                most <= per_version,
                f"{client}: {most} labels on one version of the model, {per_version} may be",
            )
    return by_client


def check_updates(bus: FaultyBus, scenario: Scenario) -> list[list[Update]]:
    """Each client sent no gap and no update twice, and every label that it learnt. Returns the updates of
    each shard."""
    learning, shards = scenario.settings.learning, scenario.settings.federation.shards
    heard: list[list[Update]] = [[] for _ in range(shards)]
    sent: dict[tuple[str, int], dict[int, Update]] = defaultdict(dict)
    latest: dict[tuple[int, str], tuple[int, int]] = {}
    version: dict[tuple[int, str], int] = {}
    once = scenario.settings.bus.processing_guarantee == "exactly_once"
    for record in bus.read(f"{scenario.settings.federation.name}.updates"):
        update = UPDATE.decode(record.value)
        if (record.topic, record.partition, record.offset) in bus.repeated:
            continue
        place, number = (record.partition, update.client), (update.epoch, update.sequence)
        if number <= latest.get(place, (-1, -1)):
            require(not once, f"{update.client}: update {update.sequence} was written twice")
            # In lockstep a label that is learnt again may count again, as the update for a round that has
            # none of the client yet.
            if learning.staleness != "lockstep" or update.model_version <= version[place]:
                continue
        latest[place], version[place] = max(number, latest.get(place, (-1, -1))), update.model_version
        heard[record.partition].append(update)
        sent[update.client, update.epoch][update.sequence] = update
    for (client, _), updates in sent.items():
        gaps = set(range(1, len(updates) + 1)) ^ set(updates)
        require(not once or not gaps, f"{client}: sequence numbers {sorted(updates)}")
    if once:
        require(len(sent) == len({client for client, _ in sent}), f"clients began anew: {sorted(sent)}")
        for client, readings in scenario.samples.items():
            labels = sum(reading.labelled for reading in readings)
            told = sum(
                update.samples
                for (name, _), updates in sent.items()
                if name == client
                for update in updates.values()
            )
            # Without a budget every label's step is sent.
            skipping = (
                scenario.settings.uplink.budget_bytes_per_second is not None and learning.staleness == "async"
            )
            require(
                told == labels or (skipping and told < labels),
                f"{client}: {labels} labels, {told} in its updates",
            )
    return heard


def check_budget(bus: FaultyBus, scenario: Scenario) -> None:
    """In any span of the roles' time a client sent at most depth + rate * seconds bytes, with or without
    restarts."""
    rate = scenario.settings.uplink.budget_bytes_per_second
    if rate is None or scenario.settings.bus.processing_guarantee == "at_least_once":
        return
    settings = scenario.settings
    row_bytes = (
        2 * settings.learning.features_per_kernel * (8 if settings.learning.precision == "float64" else 4)
    )
    lockstep = settings.learning.staleness == "lockstep"
    spent: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for at, record in bus.sent:
        client = (record.key or b"").decode()
        spent[client].append((at, encoded_size(record.key, record.value)))
    for client, sends in spent.items():
        depth = max(rate, UpdateCost(client, row_bytes, settings.federation.shards, lockstep).bytes_for(1))
        # The most bytes beyond rate * seconds in any span that ends here.
        level, last = 0.0, -math.inf
        for at, size in sends:
            level = max(0.0, level - rate * max(0.0, at - last)) + size
            last = max(last, at)
            require(
                level <= depth + 1e-6,
                f"{client}: {level:g} bytes beyond {rate:g} a second at {at:.3f}, {depth:g} may be",
            )


def check_model(bus: Bus, scenario: Scenario, heard: list[list[Update]]) -> list[dict[int, NDArray[Any]]]:
    """Each shard's version counts the applied updates, and replaying these gives the model.

    Returns, for each shard, the parameters of all kernels (others' rows are 0) by version.
    """
    settings = scenario.settings
    lockstep, shards = settings.learning.staleness == "lockstep", settings.federation.shards
    versions: list[dict[int, NDArray[Any]]] = []
    rows = 2 * settings.learning.features_per_kernel
    dtype: Any = np.float64 if settings.learning.precision == "float64" else np.float32
    for shard in range(shards):
        parameters = np.zeros((settings.kernel_count, rows), dtype)
        by_version = {0: parameters.copy()}
        marker = ShardVersion(1, 0, 0, shard, 0, 0)
        for record in bus.read(f"{settings.federation.name}.model"):
            if record.partition != shard or record.key == STATE_SETTINGS_KEY:
                continue
            message = decode_model(record.key, record.value)
            if isinstance(message, KernelParameters):
                parameters[message.kernel] = decode_array(message.parameters, dtype, (rows,), "parameters")
            elif isinstance(message, ShardVersion):
                if message == marker:
                    # Published again, for clients that may have read something else: it must be the same.
                    same = np.array_equal(parameters, by_version[marker.model_version])
                    require(
                        same, f"shard {shard}: version {message.model_version} again, with other parameters"
                    )
                    continue
                require(
                    message.model_version > marker.model_version,
                    f"shard {shard}: version {message.model_version} again",
                )
                marker = message
                by_version[marker.model_version] = parameters.copy()
        versions.append(by_version)
        if not lockstep:
            require(
                marker.updates == len(heard[shard]),
                f"shard {shard}: {marker.updates} of {len(heard[shard])} updates applied",
            )
            require(
                marker.model_version == marker.updates,
                f"shard {shard}: version {marker.model_version} of {marker.updates}",
            )
        elif scenario.exact:
            rounds = len(heard[shard]) // scenario.clients
            counted, expected = (marker.model_version, marker.updates), (rounds, len(heard[shard]))
            require(counted == expected, f"shard {shard}: {counted} rounds and updates applied of {expected}")
        else:
            require(
                marker.updates <= len(heard[shard]),
                f"shard {shard}: {marker.updates} of {len(heard[shard])} updates applied",
            )
        if not lockstep:
            own = range(shard, settings.kernel_count, shards)
            step = server_step(settings)(len(own))
            replayed: NDArray[Any] = np.zeros((len(own), rows), dtype)
            for update in heard[shard]:
                steps = np.frombuffer(update.steps, np.dtype(dtype).newbyteorder("<")).reshape(-1, rows)
                replayed = step.apply(replayed, np.array(update.kernels, np.intp) // shards, steps).astype(
                    dtype
                )
            apart = np.abs(replayed - parameters[own.start :: shards]).max(initial=0.0)
            require(
                bool(apart <= ROUNDING * (1 + np.abs(replayed).max(initial=0.0))),
                f"shard {shard}: the model is {apart:g} from what its updates make",
            )
    return versions


def check_replay(
    scenario: Scenario, predictions: dict[str, list[PredictionRecord]], models: list[dict[int, NDArray[Any]]]
) -> None:
    """Each client's predictions are reproduced by replaying its samples one by one on the model versions that
    it named."""
    settings = scenario.settings
    dimension = settings.samples.dimension if settings.samples is not None else None
    assert dimension is not None
    learner = learner_of(settings, dimension)
    for client, readings in scenario.samples.items():
        row = learner.borrow()
        for reading, made in zip(readings, predictions[client], strict=True):
            for shard, version in enumerate(made.versions):
                require(
                    version in models[shard],
                    f"{client}: {made.sample} names version {made.versions}, which never was",
                )
            parameters = sum(models[shard][version] for shard, version in enumerate(made.versions))
            assert isinstance(parameters, np.ndarray)
            label = reading.content["y"]
            batch = Batch(
                rows=np.array([row]),
                starts=np.array([0]),
                counts=np.array([1]),
                inputs=np.array([reading.content["x"]], dtype=learner.input_dtype),
                labels=np.array([0.0 if label is None else label]),
                labelled=np.array([label is not None]),
            )
            if learner.own_steps is not None and settings.learning.staleness == "async":
                # Before the first version there is no server's model.
                own_step = learner.own_steps.end if any(made.versions) else learner.own_steps.begin
                own_step(row)
            taken = learner.predict_and_learn(
                batch, parameters, np.square(parameters, dtype=np.float64).sum(axis=1)
            )
            apart = abs(float(taken.predictions[0]) - made.prediction)
            require(
                apart <= ROUNDING * (1 + abs(made.prediction)),
                f"{client}: {made.sample} predicted {made.prediction:g}, {apart:g} from what its samples so "
                "far make",
            )


def check_join(bus: Bus, scenario: Scenario) -> None:
    """Each sample's stored state: its label was learnt, or the sample waits for a label that never came. No
    label waits."""
    found: dict[tuple[str, str], int] = {}
    for key, value in _latest(bus.read(f"{scenario.settings.federation.name}.pofmkl-client.state")).items():
        kind, name, rest = _state_key(key)
        if kind == b"join":
            found[name, rest.decode()] = msgspec.msgpack.decode(value)[0]
    expected = {
        (client, reading.content["id"]): _LEARNT if reading.labelled else _WITHOUT_LABEL
        for client, readings in scenario.samples.items()
        for reading in readings
    }
    differing = sorted(one for one in found.keys() | expected.keys() if found.get(one) != expected.get(one))
    require(not differing, f"labels of these samples were not learnt, or came from nowhere: {differing[:3]}")


def check_taught(bus: Bus, scenario: Scenario, predictions: dict[str, list[PredictionRecord]]) -> None:
    """Each client's stored counts of labels and squared errors cover each sample with its own first label,
    once."""
    settings = scenario.settings
    assert settings.samples is not None
    assert settings.samples.dimension is not None
    learner = learner_of(settings, settings.samples.dimension)
    rows = {client: learner.borrow() for client in scenario.samples}
    for key, value in _latest(bus.read(f"{settings.federation.name}.pofmkl-client.state")).items():
        kind, name, rest = _state_key(key)
        if kind == b"client":
            learner.restore(rows[name], msgspec.msgpack.decode(value, type=ClientRecord).numbers)
        elif kind == b"part":
            learner.restore_part(rows[name], rest, value)
    remembered = learner.sums(list(rows.values()))
    for (client, readings), (_, labels, squared_errors, _) in zip(
        scenario.samples.items(), remembered.tolist(), strict=True
    ):
        given = {
            reading.content["id"]: reading.content["y"] for reading in readings if not scenario.late_labels
        }
        if settings.labels is not None:
            for record in bus.read(settings.labels.topic):
                content = msgspec.msgpack.decode(record.value or b"")
                if record.key == client.encode():
                    given.setdefault(content["id"], content["y"])
        errors = [
            (made.prediction - label) ** 2
            for made in predictions[client]
            if (label := given.get(made.sample)) is not None
        ]
        require(labels == len(errors), f"{client}: {len(errors)} labels, {labels:g} learnt")
        require(
            math.isclose(squared_errors, sum(errors), rel_tol=1e-9, abs_tol=1e-9),
            f"{client}: squared errors of {squared_errors:g} were learnt, its own samples and labels make "
            f"{sum(errors):g}",
        )


def check_alike(bus: Bus, calm: Bus, scenario: Scenario) -> None:
    """Lockstep: predictions of labelled samples, model, clients' and server's state equal those without
    faults, bit for bit."""
    name = scenario.settings.federation.name
    labelled = {
        (one.client, one.content["id"])
        for readings in scenario.samples.values()
        for one in readings
        if one.labelled
    }
    all_labelled = all(one.labelled for readings in scenario.samples.values() for one in readings)

    def parts(one: Bus) -> Iterator[tuple[str, dict[Any, Any]]]:
        predictions = {identity(record): record.value for record in one.read(f"{name}.predictions")}
        yield "a prediction", {key: value for key, value in predictions.items() if key in labelled}
        yield "the model", _latest(one.read(f"{name}.model"))
        yield (
            "the server's state",
            _canonical(_latest(one.read(f"{name}.pofmkl-server.state")), MemberState, _SERVER_TIMES),
        )
        clients = _canonical(_latest(one.read(f"{name}.pofmkl-client.state")), ClientRecord, _CLIENT_TIMES)
        # A sample without a label is predicted on any version at hand, and the journal stores the prediction.
        yield "a client's state", clients if all_labelled else _without_journal(clients)

    for (what, found), (_, expected) in zip(parts(bus), parts(calm), strict=True):
        differing = sorted(
            str(key) for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)
        )
        require(not differing, f"{what} is not as in a run without faults: {differing[:3]}")


# The stages in which a join may end.
_WITHOUT_LABEL, _LEARNT = 0, 3


def _state_key(key: bytes) -> tuple[bytes, str, bytes]:
    """Kind, client and the rest of a key from ``_latest`` of the clients' changelog."""
    _, kind, rest = key.split(b"/", 2)
    if kind == b"client":
        return kind, rest.decode(), b""
    end = 2 + int.from_bytes(rest[:2], "big")
    return kind, rest[2:end].decode(), rest[end:]


# When a client's state began, when its bucket was last filled, when it was last seen, predictions without a
# model, rhythms.
_CLIENT_TIMES = {
    "epoch": 0,
    "filled_at": 0.0,
    "seen_at": 0.0,
    "on_version_zero": 0,
    "sample_rhythm": Rhythm(),
    "label_rhythm": Rhythm(),
}
# When the client's state began, which its ranges show too, and when its last update came.
_SERVER_TIMES: dict[str, Any] = {"epoch": 0, "seen_at": 0.0, "ranges": [], "rhythm": Rhythm()}


def _latest(records: Iterable[Record]) -> dict[bytes, bytes]:
    """The last values of clients and kernels, as compaction would leave them, in any partition."""
    latest: dict[tuple[int, bytes], bytes | None] = {}
    for record in records:
        key = record.key or b""
        latest[record.partition if key in (MARKER_KEY, BOOK.prefix, ROUND.prefix) else 0, key] = record.value
    return {
        b"%d/" % partition + key: value
        for (partition, key), value in latest.items()
        if value is not None and not key.startswith(POSITION_KEY) and key != SILENCE.prefix
    }


def _canonical(
    state: dict[bytes, bytes], kind: type[msgspec.Struct], times: dict[str, Any]
) -> dict[bytes, Any]:
    """Clients' records, decoded as ``kind``, with fixed ``times``: times differ between runs."""
    canonical: dict[bytes, Any] = {}
    for key, value in state.items():
        if b"/client/" in key:
            canonical[key] = msgspec.structs.replace(msgspec.msgpack.decode(value, type=kind), **times)
        else:
            canonical[key] = value
    return canonical


def _without_journal(state: dict[bytes, Any]) -> dict[bytes, Any]:
    return {key: value for key, value in state.items() if b"/part/" not in key or key[-3:-2] != b"j"}
