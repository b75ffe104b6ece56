"""Gives each part of the client's state back to its owner."""

from __future__ import annotations

import msgspec

from streamfl.contract.role import BadRecord, StateChange
from streamfl.encoding.changelog_checks import UNDECODABLE, check_name
from streamfl.pofmkl.client.client_record import ClientRecord
from streamfl.pofmkl.client.client_registry import ClientRegistry
from streamfl.pofmkl.client.label_source import LabelSource, Restore
from streamfl.pofmkl.client.model import ModelTable
from streamfl.pofmkl.client.server_silence import ServerSilence
from streamfl.pofmkl.client.uploads import Uploads
from streamfl.pofmkl.state import CLIENT_PART, CLIENT_RECORD, INPUT_MEANS, SILENCE
from streamfl.records.imputation import RunningMeans
from streamfl.state.table import prefix_of

__all__ = ["ClientRestoring"]


class ClientRestoring:
    """Restores what the changelog of a partition of clients has, row by row."""

    def __init__(
        self,
        model: ModelTable,
        registry: ClientRegistry,
        uploads: Uploads,
        labels: LabelSource,
        silence: ServerSilence,
        means: RunningMeans,
    ) -> None:
        self._model = model
        self._registry = registry
        self._uploads = uploads
        self._means = means
        # What restores each row of the table, by prefix.
        self.restores: dict[bytes, Restore] = {
            CLIENT_RECORD.prefix: self._restore_client,
            CLIENT_PART.prefix: registry.restore_part,
            INPUT_MEANS.prefix: self._restore_means,
            SILENCE.prefix: silence.restore,
            **labels.restores,
        }

    def restore(self, change: StateChange) -> None:
        """Restore a change; BadRecord if it is damaged, or of nothing that a client remembers."""
        prefix = prefix_of(change.key)
        restore = self.restores.get(prefix)
        if restore is None:
            raise BadRecord("malformed", f"{change.key!r} is nothing that this client remembers")
        try:
            restore(change.partition, change.key[len(prefix) :], change.value or b"")
        except UNDECODABLE as error:
            raise BadRecord("malformed", f"a client's state: {error}") from None

    def _restore_means(self, partition: int, name: bytes, value: bytes) -> None:
        self._means.restore(self._registry.known((partition, check_name(name))).key, value)

    def _restore_client(self, partition: int, name: bytes, value: bytes) -> None:
        key, record = (partition, check_name(name)), msgspec.msgpack.decode(value, type=ClientRecord)
        self._uploads.check_versions(record.learnt_on)
        if any(shard >= len(self._model.versions) for shard in record.awaited):
            raise BadRecord(
                "malformed", f"a client waits for the shards {record.awaited} of {len(self._model.versions)}"
            )
        upload, record.upload = record.upload, None
        client = self._registry.restore(key, record)
        if upload is not None:
            self._uploads.restore(client, upload)
