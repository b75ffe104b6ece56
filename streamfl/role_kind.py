"""What a system tells the runtime about each of its roles, so that the runtime can run it without knowing the system."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from streamfl.role import Channels, Role, TopicSpec
from streamfl.state_settings import StateSettings

if TYPE_CHECKING:
    from streamfl.settings import RoleSettings

__all__ = ["RoleKind"]

Settings = TypeVar("Settings", bound="RoleSettings")


def _any_number(_settings: RoleSettings) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class RoleKind(Generic[Settings]):
    """A role as ``[role] kind = "<name>"`` names it.

    settings: the class of its configuration file. build: the role, with no partition open. channels: the topics behind its names.
    topics: the topics that it needs. state_settings: those that are remembered beside its state. partitioned_like: for a topic that
    needs as many partitions as another, the other's name. begins_anew: whether its state may be forgotten while its peers keep
    theirs, for `streamfl reset`: nothing was promised that depends on it. It may depend on the settings.
    """

    name: str
    settings: type[Settings]
    build: Callable[[Settings], Role]
    channels: Callable[[Settings], Channels]
    topics: Callable[[Settings], Sequence[TopicSpec]]
    state_settings: Callable[[Settings], StateSettings]
    partitioned_like: Callable[[Settings], Mapping[str, str]] = _any_number
    begins_anew: bool | Callable[[Settings], bool] = False

    def may_begin_anew(self, settings: Settings) -> bool:
        """Whether the role of these settings may be reset."""
        return self.begins_anew if isinstance(self.begins_anew, bool) else self.begins_anew(settings)
