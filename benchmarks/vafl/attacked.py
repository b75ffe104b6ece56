"""The vertical federation that is attacked, on images that an installed package carries, and what lay on its
topics."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import Floats
from streamfl.simulation.tables import numbers, read_data
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.messages import EMBEDDING, REPLY, Reply
from streamfl.vafl.tools.federation import VerticalFederation

# Pieces of outdoor photographs; the label: whether people made what is on them.
DATA, MADE_BY_PEOPLE = "river:ImageSegments", {"brickface", "cement", "path", "window"}
# Standardised columns of two parties. Those of the first are numbers of which nearly all differ.
PARTIES = {"a": (8, 9, 10, 11), "b": (0, 1, 3, 5, 15, 16, 17)}
ENTITIES = 960
BATCH = 16
Figures = Mapping[str, Any]


@cache
def table() -> tuple[list[Floats], Floats]:
    """Inputs by party, (rows, features) with mean 0 and deviation 1, and labels 0 and 1, in one random
    order."""
    data = read_data(DATA)
    inputs = numbers(data, data.inputs(["y"]), DATA)
    labels = np.array([str(kind) in MADE_BY_PEOPLE for kind in data.columns["y"]], float)
    order = np.random.default_rng(0).permutation(len(labels))
    inputs, labels = inputs[order], labels[order]
    inputs = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    return [inputs[:, list(own)] for own in PARTIES.values()], labels


def settings(sections: Mapping[str, Mapping[str, Any]], size: int = 1) -> VaflSettings:
    """Of any member; ``sections`` are added to what all attacks have."""
    content: dict[str, Any] = {
        "federation": {"name": "attacked", "seed": 3, "parties": list(PARTIES), "embedding_size": size},
        "role": {"kind": "simulation"},
        # What is found is compared with the columns as they are.
        "embedding": {"standardise": False},
        "learning": {
            "optimiser": "sgd",
            "learning_rate": 0.1,
            "batch_size": BATCH,
            "in_flight": BATCH,
            "wait_for": 2,
        },
        "alignment": {"quorum": 2},
    }
    for name, section in sections.items():
        content[name] = {**content.get(name, {}), **section}
    return VaflSettings.model_validate(content)


@dataclass
class Heard:
    """What lay on the topics of a federation when it was through, by party where that makes a difference."""

    embeddings: dict[str, list[Any]]
    gradients: dict[str, list[Any]]
    predictions: list[dict[str, Any]]


def started(own: VaflSettings, labels: Floats | None = None, **options: Any) -> VerticalFederation:
    """A federation with the first entities. labels: others than the table's."""
    inputs, truth = table()
    given = (truth if labels is None else labels)[:ENTITIES]
    return VerticalFederation(own, [one[:ENTITIES] for one in inputs], given, **options)


def learn(federation: VerticalFederation, passes: int = 1, labelled: int = ENTITIES) -> None:
    """Let it learn from entities of which the first ``labelled`` have their label from the beginning, the
    others none."""
    federation.write_labels(range(labelled))
    federation.replay([list(range(ENTITIES)) * passes] * len(PARTIES))
    federation.run()


def run(own: VaflSettings, passes: int = 1, labelled: int = ENTITIES, own_start: bool = False) -> Heard:
    """What is heard of a federation that learns."""
    with closing(started(own, arrivals=BATCH, own_start=own_start)) as federation:
        learn(federation, passes, labelled)
        return heard_of(federation)


def heard_of(federation: VerticalFederation) -> Heard:
    """Everything that lies on its topics by now."""

    def records(topic: str) -> list[bytes]:
        name = f"{federation.settings.federation.name}.{topic}"
        return [record.value or b"" for record in federation.bus.read(name)]

    return Heard(
        {party: [EMBEDDING.decode(one) for one in records(f"{party}.embeddings")] for party in PARTIES},
        {party: [REPLY.decode(one) for one in records(f"{party}.gradients")] for party in PARTIES},
        [json.loads(one) for one in records("predictions")],
    )


def secret_file(folder: Path, number: int = 0) -> str:
    """A file with a secret of a member of these attacks."""
    path = folder / f"secret-{number}"
    path.write_bytes(np.random.default_rng(number).bytes(32))
    path.chmod(0o600)
    return str(path)


def noisy_replies(folder: Path) -> Figures:
    """What hides labels."""
    return {"privacy": {"reply_noise": 1.0, "secret_file": secret_file(folder)}}


def vectors(messages: Sequence[Any]) -> Floats:
    """Embeddings, or gradients: (messages, embedding size)."""
    contents = [one.gradient if isinstance(one, Reply) else one.values for one in messages]
    return np.array([np.frombuffer(one, np.float32) for one in contents], np.float64)


def by_entity(messages: Sequence[Any]) -> dict[str, list[float]]:
    """The first number of each message."""
    found: dict[str, list[float]] = {}
    for one, number in zip(messages, vectors(messages)[:, 0].tolist(), strict=True):
        found.setdefault(one.entity, []).append(number)
    return found
