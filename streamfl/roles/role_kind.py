"""What the runtime has to know about a role, so that it can run it without knowing the system."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from streamfl.contract.role import Channels, Role, TopicSpec
from streamfl.state.state_settings import StateSettings
from streamfl.state.table import StateTable

if TYPE_CHECKING:
    from streamfl.configuration.settings import RoleSettings

__all__ = ["RoleKind"]

Settings = TypeVar("Settings", bound="RoleSettings")


def _any_number(_settings: RoleSettings) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class RoleKind(Generic[Settings]):
    """A role as ``[role] kind = "<name>"`` names it.

    settings: the class of its configuration file. build: makes the role, with no partition open. channels: the topics behind its
    channel names. topics: the topics that it needs. state_settings: the settings that are remembered beside its state.
    partitioned_like: by topic, the name of another topic that has as many partitions. begins_anew: whether `streamfl reset` may
    delete its state while its peers keep theirs, because no promise depends on it. It may be a function of the settings.
    state: what it remembers, for the reference.
    """

    name: str
    settings: type[Settings]
    build: Callable[[Settings], Role]
    channels: Callable[[Settings], Channels]
    topics: Callable[[Settings], Sequence[TopicSpec]]
    state_settings: Callable[[Settings], StateSettings]
    partitioned_like: Callable[[Settings], Mapping[str, str]] = _any_number
    begins_anew: bool | Callable[[Settings], bool] = False
    state: StateTable = field(default_factory=StateTable)

    def may_begin_anew(self, settings: Settings) -> bool:
        """Whether the role may be reset under these settings."""
        return self.begins_anew if isinstance(self.begins_anew, bool) else self.begins_anew(settings)
