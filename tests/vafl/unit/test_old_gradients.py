"""Gradients that come many steps after their embedding was made."""

from __future__ import annotations

import numpy as np
from tutorials import Tutorial

from streamfl.vafl.config import VaflSettings

PARTIES = {"bank": ("a", "b", "c"), "shop": ("d", "e", "f")}
FEDERATION = {"name": "credit", "seed": 11, "parties": [*PARTIES], "embedding_size": 1}
STREAM, AWAY = 500, 300


def member(kind: str, **sections: object) -> VaflSettings:
    learning = {"loss": "logistic"} if kind == "vafl-coordinator" else {}
    content = {
        "federation": FEDERATION,
        "role": {"kind": kind},
        "learning": learning | {"seeded_start": True},
    }
    return VaflSettings.model_validate(content | sections)


def test_a_coordinator_that_comes_later_throws_no_model_off() -> None:
    """Protects a live stream whose coordinator begins half a minute late: hundreds of gradients at the first
    parameters come at once, all pointing the same way, and those who came next were predicted far worse than
    by the share of those who defaulted."""
    random = np.random.default_rng(4)
    inputs = random.normal(size=(STREAM, 6)).round(3)
    chances = 1 / (1 + np.exp(1.4 - inputs @ [0.4, 0, -0.3, 0.4, 0, 0.3]))
    defaulted = (random.random(STREAM) < chances).astype(float)
    fields = PARTIES | {"outcomes": ("defaulted",)}
    names = [name for columns in fields.values() for name in columns]
    rows = [
        dict(zip(names, (*row, label), strict=True))
        for row, label in zip(inputs.tolist(), defaulted.tolist(), strict=True)
    ]
    members = [
        member("vafl-party", party={"name": party}, samples={"topic": party, "features": [*columns]})
        for party, columns in PARTIES.items()
    ]
    members.append(member("vafl-coordinator", labels={"topic": "outcomes", "label": "defaulted"}))
    tutorial = Tutorial(members, "customer", rows, fields, patience=35)
    tutorial.start()
    coordinator = tutorial.workers.pop()
    for number in range(STREAM):
        for topic in fields:
            tutorial.write(topic, [number])
        if number == AWAY:
            tutorial.workers.append(coordinator)
        for _ in range(20):
            for worker in tutorial.workers:
                worker.step(0.0)
        tutorial.now += 0.1
    newest = {one["entity"]: one["prediction"] for one in tutorial.contents("credit.predictions")}
    predicted = np.array([newest[f"customer-{number}"] for number in range(AWAY + 1, STREAM)])
    known = defaulted[AWAY + 1 :]
    share = known.mean()
    loss = -np.log(np.where(known, predicted, 1 - predicted)).mean()
    assert loss < -1.1 * (share * np.log(share) + (1 - share) * np.log(1 - share))
