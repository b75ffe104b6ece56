"""Remembers the user's own challenger models over a restart: the whole state of each, every 64 labels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from streamfl.contract.role import StateChange
from streamfl.encoding.changelog_checks import check_name
from streamfl.learning.challengers import Challenger
from streamfl.learning.model_state import ModelSnapshot
from streamfl.learning.own_models import GUESTS_ERRORS, ModelFailures, OwnChallenger, decode_remembered
from streamfl.pofmkl.state import CHALLENGER
from streamfl.state.table import named_key, split_name

__all__ = ["ChallengerMemory"]

# A state may be large, and only measurements depend on it. So a restart may lose up to 63 labels.
REMEMBERED_EVERY = 64

_ClientKey = tuple[int, str]


class ChallengerMemory:
    """The remembered states of each client's challengers.

    models: the names of the challengers that have a state to remember. The state of any other is forgotten:
    it no longer runs.
    failures: counts states that cannot be remembered or taken back.
    """

    def __init__(self, models: Collection[str] = (), failures: ModelFailures | None = None) -> None:
        self._models = models
        self._failures = failures
        self._restored: dict[_ClientKey, dict[str, ModelSnapshot]] = {}
        self._changed: dict[tuple[int, bytes], bytes | None] = {}

    def take_back(self, client: _ClientKey, fresh: Mapping[str, Challenger]) -> list[str]:
        """Give a client's new challengers their last remembered state; returns the names of those that
        failed."""
        failed = []
        for name, remembered in self._restored.pop(client, {}).items():
            model = fresh.get(name)
            if isinstance(model, OwnChallenger):
                try:
                    model.take_back(remembered)
                # The operator's own code may raise anything.
                except GUESTS_ERRORS as error:
                    self.drop(client, name)
                    self._note(name, "restore", error, "it begins anew")
                    failed.append(name)
        return failed

    def learnt(self, client: _ClientKey, name: str, model: Challenger) -> None:
        """Note that a challenger learnt a label. Remembers its state after every ``REMEMBERED_EVERY``
        labels."""
        if (
            name not in self._models
            or not isinstance(model, OwnChallenger)
            or model.labels % REMEMBERED_EVERY
        ):
            return
        try:
            self._changed[client[0], _key(client[1], name)] = model.remembered(model.labels)
        except GUESTS_ERRORS as error:
            self.drop(client, name)
            self._note(name, "state", error, "it is not stored, and would start over after a restart")

    def drop(self, client: _ClientKey, name: str) -> None:
        """Forget the remembered state of a client's challenger."""
        if name in self._models:
            self._changed[client[0], _key(client[1], name)] = None

    def forget(self, client: _ClientKey) -> Iterable[bytes]:
        """Forget a client; returns the keys that its challengers may be remembered under."""
        self._restored.pop(client, None)
        keys = [_key(client[1], name) for name in self._models]
        for key in keys:
            self._changed.pop((client[0], key), None)
        return keys

    def close(self, partition: int) -> None:
        """Drop a partition's challengers, since another worker takes them over."""
        self._restored = {
            client: states for client, states in self._restored.items() if client[0] != partition
        }
        self._changed = {key: content for key, content in self._changed.items() if key[0] != partition}

    def changed_state(self) -> Iterable[StateChange]:
        for (partition, key), content in self._changed.items():
            yield StateChange("state", partition, key, content)
        self._changed = {}

    def restore(self, partition: int, rest: bytes, value: bytes) -> None:
        """Take back what :meth:`changed_state` gave. rest: of the key, behind its prefix."""
        client, model = split_name(rest)
        name = check_name(model)
        remembered = decode_remembered(value)
        if name in self._models:
            self._restored.setdefault((partition, client), {})[name] = remembered
        else:
            self._changed[partition, _key(client, name)] = None

    def _note(self, name: str, reason: str, error: BaseException, then: str) -> None:
        if self._failures is not None:
            self._failures.note(name, reason, error, then)


def _key(client: str, model: str) -> bytes:
    return named_key(CHALLENGER.prefix, client.encode(), model.encode())
