"""What the runtime has to know about a role, so that it can run it without knowing the system."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.channel_table import ChannelTable
from streamfl.contract.channels import Channels, TopicSpec
from streamfl.contract.role import Role
from streamfl.state.changeable import changeable_keys
from streamfl.state.state_settings import StateSettings, by_key
from streamfl.state.table import StateTable

__all__ = ["RoleKind", "by_name", "own_sections"]

Settings = TypeVar("Settings", bound=RoleSettings)


def own_sections(settings: RoleSettings, layout: int = 1, without: Collection[str] = ()) -> StateSettings:
    """Every key of ``[federation]`` and of the sections that not every role has, but for those that are
    forgotten. Those marked changeable may change.

    layout: as of :class:`StateSettings`.
    without: keys that this role does not use, though its file may have them.
    """
    others = RoleSettings.model_fields.keys() - {"federation"}
    own = by_key(settings, type(settings).model_fields.keys() - others)
    content = {key: value for key, value in own.items() if key not in without}
    return StateSettings.of(content, changeable_keys(settings, settings.role.kind), layout)


@dataclass(frozen=True)
class RoleKind(Generic[Settings]):
    """A role as ``[role] kind = "<name>"`` names it.

    settings: the class of its configuration file.
    build: makes the role, with no partition open.
    table: its channels, one row each; that of the changelog follows from ``state``, unless a row is called
    so.
    state_settings: the settings that are remembered beside its state; left out:
    :func:`own_sections`.
    begins_anew: whether `streamfl reset` may delete its state while its peers keep theirs, because no promise
    depends on it. It may be a function of the settings.
    state: what it remembers, one row a key.
    metrics: classes that declare what it measures.
    """

    name: str
    settings: type[Settings]
    build: Callable[[Settings], Role]
    table: Callable[[Settings], ChannelTable]
    state_settings: Callable[[Settings], StateSettings] = own_sections
    begins_anew: bool | Callable[[Settings], bool] = False
    state: StateTable = field(default_factory=StateTable)
    metrics: tuple[type, ...] = ()

    def channel_table(self, settings: Settings) -> ChannelTable:
        """The role's channels with its changelog."""
        table = self.table(settings)
        if not self.state.rows or any(row.name == "state" for row in table.rows):
            return table
        return table.with_changelog(f"{settings.member}.state", self.state.client_of)

    def channels(self, settings: Settings) -> Channels:
        """The topics behind the role's channel names."""
        return replace(self.channel_table(settings).channels, begins_anew=self.may_begin_anew(settings))

    def topics(self, settings: Settings) -> Sequence[TopicSpec]:
        """The topics that the role needs."""
        return self.channel_table(settings).topics(settings.dead_letters)

    def partitioned_like(self, settings: Settings) -> Mapping[str, str]:
        """By topic, the name of another topic that has as many partitions."""
        return self.channel_table(settings).partitioned_like

    def placed(self, settings: Settings) -> set[str]:
        """The topics whose writers name the partition of every message."""
        return self.channel_table(settings).placed

    def may_begin_anew(self, settings: Settings) -> bool:
        """Whether the role may be reset under these settings."""
        return self.begins_anew if isinstance(self.begins_anew, bool) else self.begins_anew(settings)


def by_name(*kinds: RoleKind[Any]) -> dict[str, RoleKind[Any]]:
    """The roles of a system, for the place that its manifest names as ``roles``."""
    return {kind.name: kind for kind in kinds}
