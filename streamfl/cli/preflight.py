"""What commands examine before they do anything: the role that a file describes, its bus, and the state of
its topics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamfl.configuration.settings import RoleSettings, load_kind, load_settings
from streamfl.contract.channels import TopicSpec
from streamfl.contract.system import installed_systems
from streamfl.roles.role_kind import RoleKind
from streamfl.runtime.bus import Bus, TopicState, connect
from streamfl.runtime.kinds import find_kind
from streamfl.runtime.remembered_settings import stream_option
from streamfl.terminal.words import counted

__all__ = [
    "Configured",
    "TopicFinding",
    "inspect_topics",
    "kind_of",
    "namesake_problem",
    "namesakes",
    "policy",
    "read_configuration",
    "wrong_topics",
]


@dataclass(frozen=True)
class Configured:
    """A settings file that was read: the role's kind and its settings."""

    path: Path
    kind: RoleKind[Any]
    settings: RoleSettings

    def connect(self) -> Bus:
        """The bus of the settings; BusUnavailable if it does not answer within
        ``bus.connect_timeout_seconds``."""
        bus = self.settings.bus
        return connect(bus.url, {"connect_timeout_seconds": bus.connect_timeout_seconds, **bus.options})


@dataclass(frozen=True)
class TopicFinding:
    """A topic as it is needed and as it is. ``problem`` None: nothing is wrong. ``remedy`` says what to
    do."""

    spec: TopicSpec
    partitions: int | None
    state: TopicState | None
    problem: str | None = None
    remedy: str = ""

    @property
    def missing(self) -> bool:
        return self.state is None

    @property
    def unused(self) -> int:
        """How many further partitions it has than the role uses. They stay empty."""
        if self.problem or self.state is None or self.partitions is None:
            return 0
        return self.state.partitions - self.partitions

    @property
    def cleanup(self) -> str | None:
        """The topic's cleanup policy; None if there is no topic or it cannot be described."""
        return None if self.state is None or self.state.error or self.state.hidden else _cleanup(self.state)


def kind_of(path: Path) -> RoleKind[Any]:
    """The role kind that the file at ``path`` names; ConfigurationError if it names none. Its other keys are
    not checked."""
    return find_kind(load_kind(path))


def read_configuration(path: Path) -> Configured:
    """The role in ``path``; ConfigurationError names the mistakes."""
    kind = kind_of(path)
    return Configured(path, kind, load_settings(path, kind.settings))


def inspect_topics(
    configured: Configured, bus: Bus, default_partitions: int | None = None
) -> list[TopicFinding]:
    """Examine every topic of the role. default_partitions: for topics that do not exist yet and may have any
    number."""
    settings = configured.settings
    specs = list(configured.kind.topics(settings))
    states = bus.describe([spec.name for spec in specs])
    like = configured.kind.partitioned_like(settings)
    wanted = {spec.name: spec.partitions for spec in specs}
    present = {name: state.partitions for name, state in states.items() if state.error is None}
    for name, other in like.items():
        wanted[name] = present.get(other, wanted.get(other) or default_partitions)
    findings = []
    for spec in specs:
        state = states.get(spec.name)
        partitions = wanted[spec.name] or (default_partitions if state is None else None)
        problem, remedy = _judge(configured, spec, partitions, state)
        if state is None and not spec.users and partitions is None:
            remedy = (
                f"create {like.get(spec.name, 'its input')} first: this one has as many partitions; then "
                f"{remedy}"
            )
        findings.append(TopicFinding(spec, partitions, state, problem, remedy))
    return findings


def wrong_topics(configured: Configured, bus: Bus) -> list[str]:
    """What is wrong with topics of the role, with its remedy."""
    return [
        f"topic {found.spec.name} {found.problem}: {found.remedy}"
        for found in inspect_topics(configured, bus)
        if found.problem
    ]


def namesakes(configured: Configured, bus: Bus) -> list[str]:
    """State topics of other systems' roles under the same federation.name: both would write to the same
    topics."""
    name = configured.settings.federation.name
    # Manifests name the roles. To load the roles would load every system into each worker.
    own = configured.settings.role.kind
    others = [kind for system in installed_systems() if own not in system.kinds for kind in system.kinds]
    found = bus.describe([f"{name}.{other}.state" for other in others])
    # A topic that this principal may not describe may not exist.
    return sorted(topic for topic, state in found.items() if state.error is None)


def namesake_problem(configured: Configured, found: list[str]) -> str:
    """The error text for topics that :func:`namesakes` found."""
    return (
        f"federation.name = {configured.settings.federation.name!r}: another system's roles have used it, as "
        f"{', '.join(found)} tells, and the two would write to the same topics: give one of them another "
        "name, or delete these if nobody uses them"
    )


def policy(compacted: bool) -> str:
    """Kafka's cleanup policy for a compacted topic, or for another."""
    return "compact" if compacted else "delete"


def _cleanup(state: TopicState) -> str:
    return state.options.get("cleanup.policy", policy(state.compacted))


def _judge(
    configured: Configured, spec: TopicSpec, partitions: int | None, state: TopicState | None
) -> tuple[str | None, str]:
    if state is None:
        if spec.users:
            return "does not exist", (
                f"see that its name is right and create it; streamfl topics {configured.path} "
                "--create-inputs makes it, too"
            )
        return "does not exist", f"streamfl topics {configured.path} --create"
    if state.error is not None:
        return state.error, "ask the cluster's administrator for the right"
    kept_empty = _unshared_changelogs(configured) | configured.kind.placed(configured.settings)
    # Kafka removes no partitions. Those that such a topic has beyond the role's stay empty.
    unused = spec.name in kept_empty and partitions is not None and state.partitions > partitions
    if partitions is not None and state.partitions != partitions and not unused:
        like = configured.kind.partitioned_like(configured.settings).get(spec.name)
        reason = f"as {like} has" if like else spec.reason
        needed = f"{partitions} {'is' if partitions == 1 else 'are'} needed"
        return (
            f"has {counted(state.partitions, 'partition')}, {needed}{f', {reason}' if reason else ''}",
            _other_number(configured, spec, partitions, state.partitions),
        )
    if spec.users:
        return None, ""
    if state.hidden is not None:
        return state.hidden, "ask the cluster's administrator for the right"
    cleanup, needed = _cleanup(state), policy(spec.compacted)
    # With compact,delete state would be deleted when it is older than the retention.
    if cleanup != needed if spec.compacted else "compact" in cleanup:
        return (
            f"has cleanup.policy={cleanup}, {needed} is needed",
            f"set cleanup.policy={needed} on the topic",
        )
    for name, value in spec.options.items():
        found = state.options.get(name)
        if found is not None and found != value and not (_number(found) > _number(value)):
            return f"has {name}={found}, {value} is needed", f"set {name}={value} on the topic"
    return None, ""


def _unshared_changelogs(configured: Configured) -> set[str]:
    """The changelogs that this role alone reads."""
    channels = configured.kind.channels(configured.settings)
    own = channels.own_changelogs.items()
    return {topic for channel, topic in own if channel not in channels.published}


def _other_number(configured: Configured, spec: TopicSpec, needed: int, found: int) -> str:
    """What to do about a topic with another number of partitions, without losing its records."""
    settings = configured.settings
    channels = configured.kind.channels(settings)
    if found > needed and channels.dealt is None and not spec.users:
        return (
            "if nothing was learnt yet, delete this topic and create it again. Otherwise use another "
            "federation.name at every member: Kafka removes no partitions, and this role's state cannot "
            "follow more of them"
        )
    if found > needed:
        return "give the other as many, or delete this topic and create it again if nothing in it is needed"
    if spec.name not in channels.own_changelogs.values():
        table = configured.kind.channel_table(settings)
        if spec.name in table.between_members & table.placed:
            return (
                "it lies between members, and the samples and labels of all members need the same number of "
                f"partitions: if the others' have {found}, take topics of yours with {found}; if they have "
                f"{needed}, give this topic {needed}"
            )
        return f"give it {needed} partitions"
    if channels.dealt is None:
        return "the state there cannot be spread over more partitions: docs/changing.md says what can be done"
    stream = stream_option(settings.group)
    return (
        f"stop the role's workers, give it {needed} partitions, and run streamfl repartition "
        f"{configured.path}{stream}: it moves each client's state to where its records come now"
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
