"""Every channel of every system in the code, with topics named as docs/security.md names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from streamfl.rekeying.kind import rekey_kind
from streamfl.roles.role_kind import RoleKind
from streamfl.runtime.kinds import find_kind

__all__ = ["TopicRow", "roles_of_the_code", "rows_of_the_code"]

PARTIES = ("ann", "bob", "eve")
SAMPLES, LABELS, RAW = "own-samples", "own-labels", "own-raw"
NAMES = {
    "fed": "<federation>",
    **dict.fromkeys(PARTIES, "<party>"),
    "books": "<privacy.ledger>",
    "plant": "<group>",
}
WHOLE = {SAMPLES: "samples.topic", LABELS: "labels.topic", RAW: "samples.rekey.topic"}


@dataclass
class TopicRow:
    """A topic: kinds of roles that write and read it, and how a reader knows the writer. ``you`` writes the
    user's own topics."""

    written_by: set[str] = field(default_factory=set)
    read_by: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)


def rows_of_the_code() -> dict[tuple[str, str], TopicRow]:
    """The rows, by system and topic."""
    found: dict[tuple[str, str], TopicRow] = {}
    for system, kind, settings in roles_of_the_code():
        users = {spec.name for spec in kind.topics(settings) if spec.users}
        channels = kind.channels(settings)

        def row(topic: str, system: str = system) -> TopicRow:
            return found.setdefault((system, _named(topic)), TopicRow())

        for source in (*channels.inputs.values(), *channels.tables.values()):
            row(source.topic).read_by.add(kind.name)
            if source.topic in users:
                row(source.topic).written_by.add("you")
            if source.sender is not None:
                row(source.topic).keys.add("sealed")
            if source.signed:
                row(source.topic).keys.add("signed")
        for channel, topic in channels.outputs.items():
            row(topic).written_by.add(kind.name)
            if channel in channels.receivers:
                row(topic).keys.add("sealed")
            if channel in channels.signed:
                row(topic).keys.add("signed")
        for topic in channels.changelogs.values():
            row(topic).written_by.add(kind.name)
            row(topic).read_by.add(kind.name)
        row(settings.dead_letters).written_by.add(kind.name)
    return found


def _named(topic: str) -> str:
    return WHOLE.get(topic) or ".".join(NAMES.get(part, part) for part in topic.split("."))


def roles_of_the_code() -> Iterator[tuple[str, RoleKind[Any], Any]]:
    for system, contents in SETTINGS.items():
        for content in contents:
            kind = find_kind(content["role"]["kind"])
            yield system, kind, kind.settings.model_validate({"bus": {"url": "memory://"}, **content})
    kind, assemble = rekey_kind("samples"), {"seconds": 1.0}
    content = SETTINGS["pofmkl"][0]
    samples = {**content["samples"], "rekey": {"topic": RAW, "by": "device"}, "assemble": assemble}
    settings = find_kind("pofmkl-client").settings.model_validate(
        {"bus": {"url": "memory://"}, **content, "samples": samples}
    )
    group = {"group": f"plant.{kind.name}"}
    yield "rekey", kind, settings.model_copy(update={"bus": settings.bus.model_copy(update=group)})


def _party(kind: str, name: str, federation: dict[str, Any], **sections: Any) -> dict[str, Any]:
    samples = {"topic": SAMPLES, "features": ["t1"]}
    return {
        "federation": federation,
        "role": {"kind": kind},
        "party": {"name": name},
        "samples": samples,
        **sections,
    }


_LABELS = {"topic": LABELS, "label": "y"}
_PLANT = {"name": "fed", "clients": 2, "features": ["t1"]}
_TABLE = {"name": "fed", "parties": list(PARTIES)}
_EMBEDDED = {**_TABLE, "embedding_size": 1}
_TWO_ACTIVE, _DESCENT = {**_TABLE, "active": ["ann", "bob"]}, {"solver": "sgd", "loss": "square"}
_PLAIN = {"precision": "plain", "study": True}
_PRIVATE = {"epsilon": 5.0, "delta": 1e-3, "insecure_test_noise": True}
_WINDOW = {"window": {"rows": 30}, "privacy": _PRIVATE, "serving": {"mode": "private"}}
_COLUMNS = {**_TABLE, "columns": dict.fromkeys(PARTIES, 1)}

# Settings of every kind of role, with every option on that adds a topic.
SETTINGS: Mapping[str, list[dict[str, Any]]] = {
    "pofmkl": [
        {
            "federation": _PLANT,
            "role": {"kind": "pofmkl-client"},
            "samples": {"topic": SAMPLES, "features": ["t1"], "sample_id": "id"},
            "labels": {**_LABELS, "sample_id": "id"},
        },
        {"federation": _PLANT, "role": {"kind": "pofmkl-server"}},
    ],
    "vafl": [
        _party("vafl-party", "ann", _EMBEDDED),
        {"federation": _EMBEDDED, "role": {"kind": "vafl-coordinator"}, "labels": _LABELS},
    ],
    "fdskl": [
        _party("fdskl-worker", "ann", {**_TABLE, "active": "ann"}, labels=_LABELS),
        *(_party("fdskl-worker", name, {**_TABLE, "active": "ann"}) for name in ("bob", "eve")),
        *(
            _party("fdskl-worker", name, _TWO_ACTIVE, labels=_LABELS, learning=_DESCENT)
            for name in ("ann", "bob")
        ),
        _party("fdskl-worker", "eve", _TWO_ACTIVE, learning=_DESCENT),
    ],
    "quasi-newton": [
        _party(
            "quasi-newton-guest", "ann", _TABLE, labels=_LABELS, encryption=_PLAIN, scoring={"enabled": True}
        ),
        _party("quasi-newton-host", "bob", _TABLE, encryption=_PLAIN, scoring={"enabled": True}),
        {"federation": _TABLE, "role": {"kind": "quasi-newton-coordinator"}, "encryption": _PLAIN},
    ],
    "dp-frank-wolfe": [
        _party(
            "dp-frank-wolfe-party",
            "ann",
            _COLUMNS,
            labels=_LABELS,
            **{**_WINDOW, "privacy": {**_PRIVATE, "ledger": "books"}},
        ),
        {"federation": _COLUMNS, "role": {"kind": "dp-frank-wolfe-server"}, **_WINDOW},
    ],
}
