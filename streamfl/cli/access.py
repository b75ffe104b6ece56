"""The rights that a role needs on a cluster with ACLs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from streamfl.cli.preflight import Configured
from streamfl.runtime.bus import transactional_prefix

__all__ = ["Right", "rights"]


@dataclass(frozen=True)
class Right:
    """What one principal may do to one resource. resource: topic, group or transactional-id. pattern: literal or prefixed.

    >>> Right("User:shop", "topic", "loans.shop.state", "literal", ("Read", "Write")).arguments
    '--allow-principal User:shop --operation Read --operation Write --topic loans.shop.state'
    """

    principal: str
    resource: str
    name: str
    pattern: str
    operations: tuple[str, ...]

    @property
    def arguments(self) -> str:
        """The same as arguments of kafka-acls.sh, for a shell."""
        words = ["--allow-principal", self.principal]
        for operation in self.operations:
            words += ["--operation", operation]
        words += [f"--{self.resource}", self.name]
        if self.pattern != "literal":
            words += ["--resource-pattern-type", self.pattern]
        return shlex.join(words)


def rights(configured: Configured, principal: str | None = None) -> list[Right]:
    """Everything that ``streamfl run`` and ``streamfl check`` need, and no more. principal: left out, User:<group>.

    Creating topics, and replaying dead letters, needs more.
    """
    settings, kind = configured.settings, configured.kind
    principal = principal or f"User:{settings.group}"
    channels = kind.channels(settings)
    changelogs = set(channels.changelogs.values())
    read = {source.topic for source in (*channels.inputs.values(), *channels.tables.values())} | changelogs
    written = {*channels.outputs.values(), settings.dead_letters} | changelogs
    found = []
    for topic in dict.fromkeys([spec.name for spec in kind.topics(settings)] + sorted(read | written)):
        own = [operation for operation, topics in (("Read", read), ("Write", written)) if topic in topics]
        # A worker looks at all of them before it starts; reading or writing a topic allows seeing that it is there.
        operations = (*(own or ["Describe"]), "DescribeConfigs")
        found.append(Right(principal, "topic", topic, "literal", operations))
    found.append(Right(principal, "group", settings.group, "literal", ("Read",)))
    if settings.bus.processing_guarantee == "exactly_once":
        found.append(Right(principal, "transactional-id", transactional_prefix(settings.group), "prefixed", ("Write",)))
    return found
