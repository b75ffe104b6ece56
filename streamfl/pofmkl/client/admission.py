"""Admits new clients to a worker, and forgets idle ones to make room."""

from __future__ import annotations

from streamfl.contract.role import BadRecord
from streamfl.pofmkl.client.client_registry import ClientRegistry
from streamfl.pofmkl.client.label_source import LabelSource
from streamfl.pofmkl.client.registered_client import Client, ClientKey
from streamfl.pofmkl.client.uploads import Uploads
from streamfl.pofmkl.state import INPUT_MEANS
from streamfl.records.imputation import RunningMeans
from streamfl.records.input_watch import InputWatch

__all__ = ["Admission"]


class Admission:
    """Admits new clients. If there is no place, forgets the client that has been idle for longest.

    registry: the clients.
    uploads, labels, means: hold other state of a client.
    watch: tells why there may be more clients than expected.
    """

    def __init__(
        self,
        registry: ClientRegistry,
        uploads: Uploads,
        labels: LabelSource,
        means: RunningMeans,
        watch: InputWatch,
    ) -> None:
        self._registry = registry
        self._uploads = uploads
        self._labels = labels
        self._means = means
        self.watch = watch

    def admit(self, key: ClientKey, written_at: float, now: float) -> Client:
        """Register a client whose first sample was written at ``written_at``. BadRecord if there is no place
        for it."""
        if len(self._registry) >= self._registry.limit:
            self._make_room(key, self._registry.reached(key[0], written_at))
        client = self._registry.register(key, now)
        self._registry.observe(key, written_at)
        return client

    def forget(self, client: Client) -> None:
        """Forget all state of a client, its waiting samples and labels too."""
        means = [INPUT_MEANS.prefix + name for name in self._means.forget(client.key)]
        self._registry.forget(client, [*self._labels.forget(client), *means])
        self._uploads.forget(client)

    def _make_room(self, newcomer: ClientKey, at: float) -> None:
        waiting = self._labels.pending.waiting
        longest = self._registry.longest_idle(
            at, lambda client: self._uploads.is_open(client) or waiting(client) > 0
        )
        if longest is None:
            elsewhere = self._registry.elsewhere(newcomer[1])
            reason = "not_keyed_by_client" if elsewhere or self.watch.disorder else "too_many_clients"
            if elsewhere:
                remedy = (
                    f"its samples come in the partitions {elsewhere} too: write the topic with the client as "
                    "the key"
                )
            else:
                remedy = self.watch.disorder or (
                    "raise federation.clients, or wait until one has been without a sample for "
                    f"federation.client_expiry_seconds = {self._registry.expiry:g}"
                )
            raise BadRecord(reason, f"{newcomer[1]!r} would be client {self._registry.limit + 1}: {remedy}")
        self._registry.expired += 1
        self.forget(longest)
