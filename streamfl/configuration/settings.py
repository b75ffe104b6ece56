"""Settings: one TOML file a role. An environment variable STREAMFL_SECTION__KEY overrides a key of it.

The last source wins: defaults, then the file, then the environment, then a command's options. A mistake
raises a :class:`~streamfl.contract.role.ConfigurationError` that names the key, its value and what is
allowed.
"""

from __future__ import annotations

import copy
import os
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from streamfl.configuration.environment import ENVIRONMENT_PREFIX, NESTED_DELIMITER, read_environment
from streamfl.configuration.settings_mistakes import explained
from streamfl.configuration.urls import check_url
from streamfl.contract.role import ConfigurationError
from streamfl.contract.system import installed_systems
from streamfl.state.changeable import CHANGEABLE

__all__ = [
    "BusSection",
    "FederationSection",
    "GivenSettings",
    "IdentitySection",
    "LogSection",
    "MetricsSection",
    "ReadBy",
    "RoleSection",
    "RoleSettings",
    "Section",
    "SettingsSource",
    "TracingSection",
    "load_kind",
    "load_settings",
    "text_of",
]

ReadBy = Mapping[str, Collection[str]]
"""By section, the kinds of role that read it; left out: every kind."""


class _Copied(BaseModel):
    """Copies without values that were computed from others: the copy may have other settings."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copied = super().model_copy(update=update, deep=deep)
        for name in vars(copied).keys() - type(self).model_fields.keys():
            del vars(copied)[name]
        return copied


class Section(_Copied):
    """A table of the settings file: unknown keys are mistakes, and nothing changes once it is read.

    A validator that looks at several keys begins its message with the name of one of them, followed by a
    space.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    forgotten: ClassVar[set[str]] = set()
    """Keys that only say how to reach something. State does not depend on them, so they are not remembered
    beside it."""

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        # pydantic would take true for 1.
        if isinstance(value, bool) and info.field_name is not None:
            annotation = cls.model_fields[info.field_name].annotation
            members = (annotation, *get_args(annotation))
            if {int, float} & {get_args(one)[0] if get_origin(one) is Annotated else one for one in members}:
                raise ValueError("a number is expected, not true or false")
        return value

    def remembered(self) -> dict[str, Any]:
        """The keys that are remembered beside a role's state, as plain values. A key of a newer release
        belongs here only if it changes what the state means and is not at its default."""
        return self.model_dump(mode="json", exclude=self.forgotten)


class FederationSection(Section):
    """Who learns together. Every member needs the same values."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=200)
    """The first part of the names of the federation's topics."""
    seed: int = Field(default=0, ge=-(2**63), lt=2**63)
    """The seed of the random streams: members with the same seed draw the same numbers."""
    # The sender of each message is checked anyway.
    members: Annotated[str | None, CHANGEABLE] = Field(default=None, min_length=1)
    """The file with the members' names and public keys, which `streamfl members` makes. Set it together with
    identity.key_file. Left out: anybody who may write to a topic can speak for every member that writes
    there."""


class BusSection(Section):
    """Where the topics are and how a worker commits to them."""

    url: str = Field(default="memory://", pattern=r"^[a-z][a-z0-9+.-]*://")
    """`kafka://host:port,host:port`, `kafka+librdkafka://host:port`, `sqlite:///path`, or `memory://` within
    one process. A password in it is refused."""
    processing_guarantee: Literal["exactly_once", "at_least_once"] = "exactly_once"
    """How a commit is made. `exactly_once`: as one transaction. `at_least_once`: lower latency; after a crash
    a prediction may come twice."""
    commit_interval_ms: int = Field(default=100, ge=0, le=86_400_000)
    """Milliseconds for which records are gathered into one step. Shorter: predictions come sooner. Longer: a
    record costs less."""
    max_poll_records: int = Field(default=4000, ge=1)
    """The most records in one step."""
    auto_offset_reset: Literal["earliest", "latest", "error"] = "earliest"
    """Where a consumer group that has never committed begins to read."""
    group: str | None = Field(default=None, min_length=1)
    """The consumer group. Left out: `<federation>.<kind>`, or `<federation>.<party>` for a party."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options for the client library, passed on unchanged: security, timeouts, sizes. From the environment, 5
    and true are read as JSON."""
    connect_timeout_seconds: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """Seconds for which a command waits for the cluster. Then it gives up, with exit code 3."""
    stall_timeout_seconds: float = Field(default=120.0, gt=0, allow_inf_nan=False)
    """Seconds for which the loop of a worker may stand still. Then the worker exits with code 70, so that
    another takes over."""

    _is_a_place = field_validator("url")(check_url)


class RoleSection(Section):
    """What this process does in the federation."""

    kind: str = Field(min_length=1)
    """The role: one of those that the installed systems have."""


class IdentitySection(Section):
    """Who this member is, in a federation whose members have keys."""

    key_file: str | None = Field(default=None, min_length=1)
    """The file with this member's private key, made by `streamfl members init`. It is refused if other users
    may read it. Set it together with federation.members."""


class MetricsSection(Section):
    """The HTTP server for /metrics, /healthz and /readyz."""

    port: int | None = Field(default=None, ge=0, le=65535)
    """The port of /metrics, /healthz and /readyz. Left out: no server. 0: any free port. If another process
    has the port, such as another worker on the same machine, the worker takes the next free one of the 15
    after it and logs which."""
    host: str = "127.0.0.1"
    """The address to listen on. 0.0.0.0: all addresses, as needed in a container."""


class LogSection(Section):
    """What is logged, on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest severity that is logged."""
    format: Literal["console", "json"] = "console"
    """The format of log lines. `json`: one object a line."""
    progress_seconds: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    """Seconds between two lines of progress; the first comes after 10. 0: none."""


class TracingSection(Section):
    """Traces for OpenTelemetry. They need the extra `tracing`. Environment variables OTEL_… set what is not
    set here."""

    enabled: bool = False
    """Whether to send spans by OTLP over HTTP, for each step and for each sample with a header
    `traceparent`."""
    endpoint: str | None = Field(default=None, pattern=r"^https?://")
    """The collector's URL. Left out: OTEL_EXPORTER_OTLP_ENDPOINT, or `http://localhost:4318`."""

    @field_validator("endpoint")
    @classmethod
    def _is_a_place(cls, value: str | None) -> str | None:
        if value is not None and any(mark in value for mark in "@?#"):
            raise ValueError(
                "only an address is expected, such as http://localhost:4318; a key belongs in "
                "OTEL_EXPORTER_OTLP_HEADERS"
            )
        return value


class RoleSettings(_Copied, BaseSettings):
    """The sections that every role has; a system's settings add their own.

    The constructor reads only its arguments; :func:`load_settings` adds file and environment.
    """

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter=NESTED_DELIMITER,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )

    read_by: ClassVar[ReadBy] = {}
    # Whether a record's key alone names its client or entity, so that `init` writes no field that does.
    names_are_keys: ClassVar[bool] = False

    federation: FederationSection
    role: RoleSection
    identity: IdentitySection = Field(default_factory=IdentitySection)
    bus: BusSection = Field(default_factory=BusSection)
    metrics: MetricsSection = Field(default_factory=MetricsSection)
    log: LogSection = Field(default_factory=LogSection)
    tracing: TracingSection = Field(default_factory=TracingSection)

    @classmethod
    def needed_by(cls, kind: str) -> list[str]:
        """The sections that a role of this kind cannot run without, although their fields have a default."""
        return []

    @property
    def member(self) -> str:
        """The prefix of the names of this member's own topics and of its consumer group."""
        return f"{self.federation.name}.{self.role.kind}"

    @property
    def group(self) -> str:
        """The consumer group of this role's workers."""
        return self.bus.group or self.member

    @property
    def predictions_topic(self) -> str:
        """The topic of the federation's predictions."""
        return f"{self.federation.name}.predictions"

    @property
    def dead_letters(self) -> str:
        """The topic for records that this role cannot use."""
        return f"{self.federation.name}.dead-letters"

    def in_one_process(self) -> Self:
        """These settings for a federation within one process: members have no keys, and predictions are plain
        JSON."""
        changed: dict[str, Any] = {
            "federation": self.federation.model_copy(update={"members": None}),
            "identity": IdentitySection(),
        }
        if (predictions := getattr(self, "predictions", None)) is not None:
            changed["predictions"] = type(predictions)()
        return self.model_copy(update=changed)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # A simulation builds its own settings, and an operator's environment must not change them.
        return (init_settings,)

    @model_validator(mode="after")
    def _keys_have_members(self) -> RoleSettings:
        # With one of the two alone a federation would look protected without being so.
        if self.identity.key_file is not None and self.federation.members is None:
            raise ValueError(
                "federation.members is missing: with identity.key_file it names the file of the members' "
                "public keys"
            )
        if self.federation.members is not None and self.identity.key_file is None:
            raise ValueError(
                "identity.key_file is missing: with federation.members it names this member's private key "
                "file"
            )
        return self

    @field_validator("*", mode="before")
    @classmethod
    def _is_a_table(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, (Mapping, BaseModel)):
            raise ValueError("a section is expected here, with its keys beneath it")
        return value


class GivenSettings(dict[str, Any]):
    """Sections by name, keys within, given by a program in place of a file. The environment does not override
    them."""

    def __str__(self) -> str:
        return "the settings"


SettingsSource = Path | str | GivenSettings | None
Settings = TypeVar("Settings", bound=RoleSettings)


def load_settings(
    path: SettingsSource, cls: type[Settings], overrides: Mapping[str, Any] | None = None
) -> Settings:
    """The settings of class ``cls`` from the file at ``path`` (None: no file), the environment and
    ``overrides``.

    A program may give :class:`GivenSettings` in place of a file.

    overrides: sections by name, keys within; they win over everything. ConfigurationError names every wrong
    key.
    """
    content = _read_file(path)
    if not isinstance(path, GivenSettings):
        _merge(content, read_environment(cls))
    _merge(content, dict(overrides or {}))
    try:
        return cls(**content)
    except ValidationError as error:
        source = "the settings" if path is None else str(path)
        raise ConfigurationError(f"{source}: " + "\n".join(explained(error, cls, content))) from None


def load_kind(path: SettingsSource) -> str:
    """``role.kind``: it decides which settings class reads the rest."""
    kind = text_of(path, "role", "kind")
    if kind is None:
        source = "the settings" if path is None else str(path)
        known = [name for system in installed_systems() for name in system.kinds]
        raise ConfigurationError(
            f"{source}: role.kind is missing: say in [role] which role this is, kind = one of "
            f"{', '.join(sorted(known))}"
        )
    return kind


def text_of(path: SettingsSource, section: str, key: str) -> str | None:
    """One key of the file at ``path`` or of the environment, for callers that do not know the settings class
    of the rest."""
    written = _read_file(path).get(section)
    variable = f"{ENVIRONMENT_PREFIX}{section}__{key}".upper()
    given = None if isinstance(path, GivenSettings) else os.environ.get(variable)
    text = given or (written.get(key) if isinstance(written, dict) else None)
    return text if isinstance(text, str) and text else None


def _read_file(path: SettingsSource) -> dict[str, Any]:
    if path is None:
        return {}
    if isinstance(path, GivenSettings):
        return copy.deepcopy(dict(path))
    try:
        # Some editors begin a file with a byte-order mark.
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: is not text in UTF-8") from None
    except (ValueError, RecursionError) as error:
        # A number with thousands of digits is a plain ValueError.
        raise ConfigurationError(f"{path}: is not TOML: {error}") from None


def _merge(base: dict[str, Any], above: Mapping[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = dict(value) if isinstance(value, Mapping) else value
