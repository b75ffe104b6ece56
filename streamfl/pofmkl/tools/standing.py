"""A client's state towards its server: unread records, whether versions of the model come, and updates that
the budget pays."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import numpy as np

from streamfl.contract.role import BadRecord
from streamfl.identity import SEAL_BYTES
from streamfl.pofmkl.client.bandwidth import UpdateCost
from streamfl.pofmkl.client.catch_up import LABELS_A_GRANT
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.messages import KernelParameters, PublishedSettings, SignedVersion, decode_model_record
from streamfl.runtime.bus import Bus
from streamfl.simulation.system_tools import Standing

__all__ = ["client_standing", "updates_of", "without_a_model"]

# After the last version of a shard there may be the server's settings, and parameters of a version that is
# being written.
LAST_RECORDS = 64
# Stands for a client's name while none is known, for the size of updates.
NAME = "client-00000"
ASK_THE_SERVER = "start the pofmkl-server, or check what its log says about these clients' updates"

INSPECT = "streamfl inspect counts those that were read and wait for a version of the model"


def client_standing(
    settings: PofmklSettings, bus: Bus, unread: Mapping[str, int], role: PofmklClient | None
) -> list[Standing]:
    """The state by the topics and by the role's stored state. role: with its state restored; None: use the
    topics alone."""
    waiting = None if role is None else sum(role.waiting.values())
    found = [_backlog(settings, unread, waiting, _clients(settings, role)), *_model(settings, bus, role)]
    return found if role is None else [*found, *without_a_model(role)]


def without_a_model(role: PofmklClient) -> Iterator[Standing]:
    """How many of the predictions were made before there was a model, as far as the state tells."""
    clients = role.snapshot().values()
    if not (predictions := sum(one.samples for one in clients)):
        return
    early = sum(one.on_version_zero for one in clients)
    told = f"{early:,} of {predictions:,} ({early / predictions:.0%}) were made before there was a model"
    if not early:
        told = f"none of {predictions:,} is known of; release 0.1 did not count them"
    yield Standing("predictions on version 0", told)


def _clients(settings: PofmklSettings, role: PofmklClient | None) -> int:
    """The number of known clients, or of expected ones while none is known."""
    return (0 if role is None else len(role.snapshot())) or settings.federation.clients


def _backlog(
    settings: PofmklSettings, unread: Mapping[str, int], waiting: int | None, clients: int
) -> Standing:
    """unread: unread records, by topic. waiting: samples or labels that were read and not learnt; None: the
    state, which knows, was not read."""
    learning, budget = settings.learning, settings.uplink.budget_bytes_per_second
    assert settings.samples is not None
    labelled, kind = (settings.samples, "samples") if settings.labels is None else (settings.labels, "labels")
    each = math.ceil((unread[labelled.topic] + (waiting or 0)) / clients)
    if not each and not any(unread.values()):
        if waiting is None:
            return Standing("backlog", f"no record is unread. {INSPECT}")
        return Standing("backlog", "none: every record was processed")
    where = " and ".join(f"{count:,} records of {topic}" for topic, count in unread.items())
    told = f"{where} are unread"
    if waiting is not None:
        told += f", and {waiting:,} {kind} wait for a version of the model"
    if learning.staleness != "async":
        return Standing("backlog", told)
    if not learning.catch_up_samples:
        return Standing(
            "backlog",
            f"{told}. They are learnt at once, with the current model: learning.catch_up_samples is 0",
        )
    told += (
        f": {each:,} {kind} of each of {clients:,} clients on average. They are learnt in step with the "
        f"model, at most {learning.catch_up_samples} of a client on each version"
    )
    if budget is None:
        return Standing("backlog", told)
    # The paper's steps are added up over the labels of a version. With the default each label has its own
    # update.
    wanted = updates_of(each, learning.catch_up_samples) if learning.preset == "paper" else each
    # The smallest update has one kernel. A bucket holds a second of the budget, or one such update.
    smallest = _smallest_update(settings)
    at_once = max(1, math.floor(budget / smallest))
    if at_once >= wanted:
        return Standing("backlog", f"{told}. The byte budget pays all {wanted:,} updates of a client at once")
    return Standing(
        "backlog",
        f"{told}. That takes {wanted:,} updates of a client. With uplink.budget_bytes_per_second = "
        f"{budget:g} catch-up sends at most {at_once:,} of them at once, and one more every "
        f"{_duration(smallest / budget)} ({smallest:,} bytes each); the rest is learnt alone: a client "
        "without bytes does not wait",
    )


def updates_of(labels: int, most: int) -> int:
    """Updates in which a new client sends ``labels`` labels, if each sums up the labels of a version,
    ``most`` at most.

    >>> updates_of(8, 16), updates_of(10, 16), updates_of(11, 16), updates_of(1000, 1)
    (8, 9, 10, 1000)
    """
    updates = 0
    for grant in range(1, most):
        if labels <= grant * LABELS_A_GRANT:
            return updates + math.ceil(labels / grant)
        updates, labels = updates + LABELS_A_GRANT, labels - grant * LABELS_A_GRANT
    return updates + math.ceil(labels / most)


def _smallest_update(settings: PofmklSettings) -> int:
    number = np.dtype(np.float64 if settings.learning.precision == "float64" else np.float32)
    row_bytes = 2 * settings.learning.features_per_kernel * number.itemsize
    sealed = 0 if settings.identity.key_file is None else SEAL_BYTES
    return UpdateCost(NAME, row_bytes, settings.federation.shards, False, sealed).bytes_for(1)


def _model(settings: PofmklSettings, bus: Bus, role: PofmklClient | None) -> list[Standing]:
    """The server's last version, and since when it owes a new one."""
    name, learning, now = settings.federation.name, settings.learning, time.time()
    topic, updates = f"{name}.model", f"{name}.updates"
    states = bus.describe([topic, updates])
    if len(states) < 2 or any(state.error is not None for state in states.values()):
        return []
    versions, published = _versions(bus, topic, states[topic].partitions)
    told = "the server has published no version yet"
    if any(versions.values()):
        told = (
            f"version {', '.join(map(str, versions.values()))}, published "
            f"{_duration(max(0.0, now - published))} ago"
        )
    found = Standing("model", told)
    if learning.staleness != "async":
        return [found]
    if role is not None:
        # From the stored state: patience is counted by the worker's clock.
        since = role.silence.alone_since
        how = (
            ""
            if since is None
            else f"since {datetime.fromtimestamp(since, UTC):%Y-%m-%d %H:%M:%S} UTC no new version has come"
        )
    else:
        patience = learning.catch_up_patience_seconds
        count = _unanswered(bus, updates, published, now - patience)
        how = (
            f"{count:,} updates have waited for a new version for {patience:g} s and longer" if count else ""
        )
    return [found, Standing("alone", f"clients learn alone: {how}", ASK_THE_SERVER)] if how else [found]


def _versions(bus: Bus, topic: str, partitions: int) -> tuple[dict[int, int], float]:
    """The last version of each shard that has one, and when the newest of them was written."""
    versions, published = {}, -math.inf
    for record in bus.peek(topic, range(partitions), LAST_RECORDS):
        try:
            message = decode_model_record(record)
        except BadRecord:
            continue
        if not isinstance(message, KernelParameters | PublishedSettings):
            marker = message.marker if isinstance(message, SignedVersion) else message
            versions[record.partition], published = marker.model_version, max(published, record.timestamp)
    return dict(sorted(versions.items())), published


def _unanswered(bus: Bus, topic: str, published: float, before: float) -> int:
    """Updates that are older than ``before`` and younger than the newest version, by offsets: a client may
    not read this topic."""
    # Times are in milliseconds. Updates from the version's own millisecond are in it, or in the next.
    answered = bus.offsets(topic, published + 0.001)
    return sum(
        max(0, offset - answered[partition]) for partition, offset in bus.offsets(topic, before).items()
    )


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.1f} s"
        if seconds < 10
        else f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
    )
