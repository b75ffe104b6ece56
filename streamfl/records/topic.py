"""A user's own topic: its name, the format of its records, and the registry with their schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator, model_validator

from streamfl.configuration.settings import RoleSettings, Section
from streamfl.records.csv_layout import Decimal
from streamfl.records.fields import TopicName
from streamfl.state.changeable import CHANGEABLE

__all__ = ["RecordSettings", "RegistrySection", "TopicSection"]


class RegistrySection(Section):
    """The schema registry, for all topics whose records name a schema by number."""

    url: str = Field(pattern=r"^https?://[^@?#]+$")
    """`https://host:port`, with a path if the registry has one. A password in it is refused."""
    user: str | None = Field(default=None, min_length=1)
    """User name for basic authentication; with password_file."""
    password_file: str | None = Field(default=None, min_length=1)
    """The file with the password, read anew at every request, so that it can be changed while the worker
    runs."""
    token_file: str | None = Field(default=None, min_length=1)
    """The file with a bearer token, read anew at every request."""
    oauth_token_url: str | None = Field(default=None, pattern=r"^https?://[^@?#]+$")
    """URL of the OAuth token endpoint (client credentials); with the settings below."""
    oauth_client_id: str | None = Field(default=None, min_length=1)
    """The client's id at the token endpoint."""
    oauth_client_secret_file: str | None = Field(default=None, min_length=1)
    """The file with the client's secret."""
    oauth_scope: str | None = Field(default=None, min_length=1)
    """The scope to request."""
    headers: dict[str, str] = Field(default_factory=dict)
    """HTTP headers for every request, as some registries need them: `{ target-sr-cluster = "lsrc-1" }`. Put
    no secrets here."""
    ca_file: str | None = Field(default=None, min_length=1)
    """CA certificates that the registry is verified with; left out: those of the system. This file and the
    two below are read anew at every request, so that certificates can be changed while the worker runs."""
    certificate_file: str | None = Field(default=None, min_length=1)
    """This client's certificate, if the registry asks for one; with key_file."""
    key_file: str | None = Field(default=None, min_length=1)
    """The certificate's private key, without a passphrase."""
    timeout_seconds: float = Field(default=5.0, gt=0, le=30, allow_inf_nan=False)
    """Seconds after which a request has failed. It is tried again; meanwhile records wait in their topic."""

    def remembered(self) -> dict[str, Any]:
        # Where schemas are found changes nothing that was learnt.
        return {}

    @model_validator(mode="after")
    def _belong_together(self) -> RegistrySection:
        for one, other in (
            ("user", "password_file"),
            ("certificate_file", "key_file"),
            ("oauth_token_url", "oauth_client_id"),
            ("oauth_token_url", "oauth_client_secret_file"),
        ):
            if (getattr(self, one) is None) != (getattr(self, other) is None):
                missing, given = (one, other) if getattr(self, one) is None else (other, one)
                raise ValueError(f"{missing} is missing: it belongs to {given}")
        if sum(key is not None for key in (self.user, self.token_file, self.oauth_token_url)) > 1:
            raise ValueError(
                "user, token_file and oauth_token_url exclude one another: leave all but one out"
            )
        return self


class TopicSection(Section):
    """A user's own topic, and the format of its records."""

    forgotten: ClassVar[set[str]] = {
        "schema_file",
        "message",
        "columns",
        "delimiter",
        "decimal",
        "check_schema",
        "registry",
    }

    topic: TopicName
    """Your own topic, not one of the federation's."""
    # Once records are numbers, their format does not matter.
    format: Annotated[str, CHANGEABLE] = "json"
    """Format of the records: `json`, `json-schema`, `msgpack`, `avro`, `protobuf`, `csv`, `debezium`, or any
    installed format."""
    schema_file: str | None = Field(default=None, min_length=1)
    """The file with the records' schema, if they do not name one of a registry: Avro's in JSON, Protobuf's as
    `.proto` or as a descriptor set of protoc, a JSON Schema with check_schema."""
    check_schema: bool | None = None
    """`true`: with `json-schema`, records that their schema refuses go to the dead letters. Left out: the
    schema is ignored."""
    message: str | None = Field(default=None, min_length=1)
    """With Protobuf: the message's full name, if the schema has several messages."""
    columns: list[str] | None = Field(default=None, min_length=1)
    """With CSV: the columns' names, in their order."""
    delimiter: str | None = None
    """With CSV: the character between two values, such as `";"`, or `"\\t"` for a tab. Left out: a comma."""
    decimal: Decimal | None = None
    """With CSV: the decimal mark. `","` reads 21,5 as 21.5, and 1.234,5 as 1234.5. Numbers with a point alone
    stay what they are. Left out: a point."""
    registry: RegistrySection | None = None
    """The schema registry of this topic; left out: [registry]."""

    @field_validator("columns")
    @classmethod
    def _are_different(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and len(set(value)) < len(value):
            raise ValueError("no column may occur twice")
        return value

    @field_validator("delimiter")
    @classmethod
    def _is_one_character(cls, value: str | None) -> str | None:
        if value is not None and (len(value) != 1 or value in '"\r\n'):
            raise ValueError("one character is expected, no quote and no line break")
        return value

    @property
    def of_topic(self) -> dict[str, Any]:
        """This section's keys about the topic, for another section of the same topic."""
        return {key: getattr(self, key) for key in TopicSection.model_fields}


class RecordSettings(RoleSettings):
    """Settings of a role that reads users' records, with one registry for all of their topics."""

    registry: RegistrySection | None = None

    @model_validator(mode="before")
    @classmethod
    def _topics_know_the_registry(cls, content: Any) -> Any:
        if not isinstance(content, Mapping) or not isinstance(
            content.get("registry"), (Mapping, RegistrySection)
        ):
            return content
        known = {**content}
        for name, field in cls.model_fields.items():
            section = content.get(name)
            if (
                isinstance(section, Mapping)
                and "registry" not in section
                and _has_a_registry(field.annotation)
            ):
                known[name] = {**section, "registry": content["registry"]}
        return known


def _has_a_registry(annotation: Any) -> bool:
    members = getattr(annotation, "__args__", (annotation,))
    return any(
        isinstance(member, type) and issubclass(member, Section) and "registry" in member.model_fields
        for member in members
    )
