"""Decides when an entity is predicted and learnt from, and when a newer embedding is requested."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.vafl.config import VaflSettings

__all__ = ["NOTHING", "Decision", "PredictionBatch", "decide"]


@dataclass(frozen=True, slots=True)
class PredictionBatch:
    """Entities to predict.

    places: their places among the entities that were considered.
    embeddings: number of embeddings in each prediction.
    revisions: how often each entity was predicted before.
    """

    places: NDArray[np.intp]
    embeddings: NDArray[np.int64]
    revisions: NDArray[np.int64]


NOTHING = PredictionBatch(*(np.zeros(0, kind) for kind in (np.intp, np.int64, np.int64)))


@dataclass(slots=True)
class Decision:
    """The decision for n entities and M parties. Arrays are (n,) or (n, M).

    ready: (n,) the entity is labelled, and waits for no embedding that was asked for.
    answers: (n,) some party is to get a gradient: now, or once a newer embedding is there.
    asks: (n,) a newer embedding is asked for first.
    given_up: (n, M) the party is asked once more, and not waited for.
    answered: (n, M) the party gets a gradient.
    stale: (n, M) the party's embedding is too old for a gradient, and a newer one is asked for first.
    used: (n, M) the gradient is computed from the party's embedding.
    outdated: (n, M) the party's embedding is too old, so the party's mean replaces it.
    waits: (n,) the entity waits for more parties.
    together: (n,) the entity is learnt from with ``wait_for`` parties together.
    below_quorum: (n,) fewer parties than the quorum have a usable embedding.
    withheld: (n,) the label may not be released. False until :class:`LabelRelease` sets it.
    releases: (n,) how often the label was released, this time included.
    noises: (n,) fingerprint of the noise and secret of that release.
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
    releases: NDArray[np.int64]
    noises: NDArray[np.int64]

    @property
    def asked(self) -> NDArray[np.bool_]:
        """(n, M) which parties are asked for a newer embedding."""
        return self.given_up | (self.stale & ~self.withheld[:, np.newaxis])

    @property
    def learns(self) -> NDArray[np.bool_]:
        """(n,) which entities are learnt from now."""
        return self.answers & ~self.asks & ~self.withheld


def decide(
    settings: VaflSettings,
    learning_quorum: int,
    entities: NDArray[Any],
    embeddings: NDArray[Any],
    outdated: NDArray[np.bool_],
    behind: NDArray[np.bool_],
) -> Decision:
    """Decide which of n entities are learnt from, which have to wait, and which parties are asked for newer
    embeddings.

    entities: (n,) of ENTITY_ROW.
    embeddings: (n, M) of EMBEDDING_ROW.
    outdated: (n, M) which embeddings are older than D steps.
    behind: (M,) or (n, M) which parties the quorum does not wait for.
    """
    held, unanswered = embeddings["held"], embeddings["unanswered"]
    ready = entities["labelled"] & ~(unanswered & embeddings["asked"]).any(axis=1)
    # A party that used up its requests and whose embedding is too old again counts as absent. One more
    # request, whose answer is not waited for, tells the party to forget the entity: no gradient will come.
    given_up = (
        unanswered & outdated & (embeddings["requests"] >= settings.alignment.requests) & ready[:, np.newaxis]
    )
    unanswered = unanswered & ~given_up
    # A party that was absent when enough others were there comes too late: nobody waits for it, and it waits
    # for nobody.
    late = unanswered & (embeddings["answers"] < entities["rounds"][:, np.newaxis])
    enough = (unanswered & ~late).sum(axis=1) >= settings.learning.wait_for
    missing = ~held | (outdated & ~unanswered)
    below_quorum = np.asarray((~missing).sum(axis=1) < learning_quorum)
    waits = ready & enough & below_quorum & (missing & ~behind).any(axis=1)
    together = ready & enough & ~waits
    answered = np.where(together[:, np.newaxis], unanswered, late & ready[:, np.newaxis])
    answers = np.asarray(answered.any(axis=1))
    stale = unanswered & outdated & answers[:, np.newaxis]
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
        releases=entities["releases"].copy(),
        noises=entities["noise"].copy(),
    )
