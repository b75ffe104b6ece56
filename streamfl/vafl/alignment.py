"""When an entity's embeddings and label make something: a prediction, a gradient, a request for a newer embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["NOTHING", "Alignment", "Decision", "Predicting", "decide"]


@dataclass(frozen=True)
class Alignment:
    """The rules.

    quorum: parties that have to have shown an entity before it is predicted.
    learning_quorum: parties that have to have shown it before it is learnt from; None: all.
    wait_for: t, parties that have to have shown it anew before it is learnt from; 1: at once, all parties: synchronously. Who comes
        after them is answered at once.
    max_staleness: D, steps that a party may be known to have taken since an embedding that a gradient is computed from. A newer one
        is asked for.
    requests: how often one is asked for at most.
    reply_seconds: how long a newer embedding, or the learning quorum, is waited for. Then who has shown none counts as absent, and
        is not waited for again until it keeps up.
    revise: predict again with every further embedding before the label.
    expiry: seconds after its last message, or the end of waiting, that an entity is forgotten.
    limit: entities of a partition that are remembered at most; the oldest gives way.
    keep: remember what was learnt from, for parties that show it again.
    """

    quorum: int = 1
    learning_quorum: int | None = None
    wait_for: int = 1
    max_staleness: int | None = None
    requests: int = 4
    reply_seconds: float = 10.0
    revise: bool = True
    expiry: float = 3600.0
    limit: int = 100_000
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Predicting:
    """Entities that are predicted.

    places: among those that were asked about.
    embeddings: how many each prediction is made of.
    revisions: how often each was predicted before.
    """

    places: NDArray[np.intp]
    embeddings: NDArray[np.int64]
    revisions: NDArray[np.int64]


NOTHING = Predicting(*(np.zeros(0, kind) for kind in (np.intp, np.int64, np.int64)))


@dataclass(slots=True)
class Decision:
    """What follows for n entities and M parties. Arrays are (n,) or (n, M).

    ready: (n,) it is labelled, and nothing that was asked for is awaited.
    answers: (n,) it is to be answered: now, or once a newer embedding is there.
    asks: (n,) a newer embedding is asked for first.
    given_up: (n, M) who is asked once more, and waited for no longer.
    answered: (n, M) who gets a gradient.
    stale: (n, M) whose embedding is too old for that, and is asked for anew first.
    used: (n, M) whose embedding a gradient is made of.
    outdated: (n, M) whose embedding is too old, so that the party's mean stands for it.
    waits: (n,) more parties are waited for.
    together: (n,) ``wait_for`` parties are learnt from together.
    below_quorum: (n,) of fewer parties than the quorum.
    withheld: (n,) its label may not be told of. Nobody is until :class:`LabelRelease` says so.
    lives: (n,) how often its label was told of before, this time included.
    noises: (n,) by what fingerprint of noise and secret.
    """

    ready: NDArray[np.bool_]
    answers: NDArray[np.bool_]
    asks: NDArray[np.bool_]
    given_up: NDArray[np.bool_]
    answered: NDArray[np.bool_]
    stale: NDArray[np.bool_]
    used: NDArray[np.bool_]
    outdated: NDArray[np.bool_]
    waits: NDArray[np.bool_]
    together: NDArray[np.bool_]
    below_quorum: NDArray[np.bool_]
    withheld: NDArray[np.bool_]
    lives: NDArray[np.int64]
    noises: NDArray[np.int64]

    @property
    def asked(self) -> NDArray[np.bool_]:
        """(n, M) who is asked for a newer embedding."""
        return self.given_up | (self.stale & ~self.withheld[:, np.newaxis])

    @property
    def learns(self) -> NDArray[np.bool_]:
        """(n,) which entities are learnt from now."""
        return self.answers & ~self.asks & ~self.withheld


def decide(
    rules: Alignment,
    learning_quorum: int,
    entities: NDArray[Any],
    embeddings: NDArray[Any],
    outdated: NDArray[np.bool_],
    behind: NDArray[np.bool_],
) -> Decision:
    """Which of n entities are learnt from, which have to wait, and whose embeddings are asked for anew.

    entities: (n,) of ENTITY.
    embeddings: (n, M) of EMBEDDING.
    outdated: (n, M) whose embeddings are past D.
    behind: (M,) or (n, M) which parties no quorum waits for.
    """
    held, fresh = embeddings["held"], embeddings["fresh"]
    ready = entities["labelled"] & ~(fresh & embeddings["asked"]).any(axis=1)
    # Whoever was asked as often as may be, and is too old again, counts as absent. It is asked once more, and nobody waits for the
    # answer: that tells the party to forget the entity, because no gradient will come.
    given_up = fresh & outdated & (embeddings["requests"] >= rules.requests) & ready[:, np.newaxis]
    fresh = fresh & ~given_up
    # Who was absent when enough others were there comes too late to wait for, and waits for nobody.
    late = fresh & (embeddings["answers"] < entities["rounds"][:, np.newaxis])
    enough = (fresh & ~late).sum(axis=1) >= rules.wait_for
    missing = ~held | (outdated & ~fresh)
    below_quorum = np.asarray((~missing).sum(axis=1) < learning_quorum)
    waits = ready & enough & below_quorum & (missing & ~behind).any(axis=1)
    together = ready & enough & ~waits
    answered = np.where(together[:, np.newaxis], fresh, late & ready[:, np.newaxis])
    answers = np.asarray(answered.any(axis=1))
    stale = fresh & outdated & answers[:, np.newaxis]
    return Decision(
        ready=ready,
        answers=answers,
        asks=np.asarray(stale.any(axis=1)),
        given_up=given_up,
        answered=answered,
        stale=stale,
        used=held & ~outdated,
        outdated=held & outdated,
        waits=waits,
        together=together,
        below_quorum=below_quorum,
        withheld=np.zeros(len(entities), np.bool_),
        lives=entities["life"].copy(),
        noises=entities["noise"].copy(),
    )
