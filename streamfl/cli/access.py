"""The rights that a role needs on a cluster with ACLs."""

from __future__ import annotations

from streamfl.cli.preflight import Configured
from streamfl.runtime.bus import transactional_prefix
from streamfl.runtime.rights import Right

__all__ = ["rights"]


def rights(configured: Configured, principal: str | None = None) -> list[Right]:
    """Exactly the rights that ``streamfl run`` and ``streamfl check`` need. principal: left out,
    User:<group>.

    Creating topics, and replaying dead letters, needs more.
    """
    settings, kind = configured.settings, configured.kind
    principal = principal or f"User:{settings.group}"
    channels = kind.channels(settings)
    changelogs = set(channels.changelogs.values())
    read = {source.topic for source in channels.sources.values()} | changelogs
    written = {*channels.outputs.values(), settings.dead_letters} | changelogs
    found = []
    for topic in dict.fromkeys([spec.name for spec in kind.topics(settings)] + sorted(read | written)):
        own = [operation for operation, topics in (("Read", read), ("Write", written)) if topic in topics]
        # A worker describes all topics before it starts. Read and Write include Describe.
        operations = (*(own or ["Describe"]), "DescribeConfigs")
        found.append(Right(principal, "topic", topic, "literal", operations))
    found.append(Right(principal, "group", settings.group, "literal", ("Read",)))
    if settings.bus.processing_guarantee == "exactly_once":
        found.append(
            Right(principal, "transactional-id", transactional_prefix(settings.group), "prefixed", ("Write",))
        )
    return found
