"""What a party has answered in a partition's life, and what of a round is more than a federation that learns can need.

Nothing here keeps the columns from whoever may ask for phases: it makes it slower, and shows it to the party's operator.
"""

from __future__ import annotations

import msgspec

from streamfl.changelog import ChangedParts
from streamfl.fdskl.figures import WorkerFigures
from streamfl.fdskl.messages import DISTANCES, PHASES, Round
from streamfl.fdskl.peers import Peers
from streamfl.notices import Notices
from streamfl.role import PeerError

__all__ = ["Answered"]

# The bandwidth is found anew where the active party begins anew. Of the same columns it comes out alike.
FARTHEST = 4.0
# Rounds of distances that a federation may need: one, and again what was abandoned, or lost with the active party's state.
MANY_DISTANCES = 16
SPENT = (
    "an entity has told privacy.features_per_entity features, so its mean stands in from now on. Where features are replaced "
    "(learning.sweeps, or the solver sgd) and entities live for long, raise it; else ask the active party why it wants so many"
)


class Answered:
    """Of one partition; the peers remember it. Remembered as ``rescaled``: features of a second bandwidth were drawn anew.

    A release before 0.2 would draw those as it drew the first ones, and no model is of such: it refuses a record that it does not
    know. Everything else here it passes over.

    parts: where it is remembered.
    peers: of the partition.
    draws_anew: whether features of another bandwidth are: private ones.
    refuses: what is too much; False: it is told alone, for where members have no keys a stranger may have asked first.
    figures, notices: for the operator.
    """

    def __init__(
        self, parts: ChangedParts, peers: Peers, draws_anew: bool, refuses: bool, figures: WorkerFigures, notices: Notices
    ) -> None:
        self._parts = parts
        self._peers = peers
        self._draws_anew = draws_anew
        self._refuses = refuses
        self._figures = figures
        self._notices = notices
        self._rescaled = False

    @property
    def bandwidth(self) -> float | None:
        """The one that the party's features were first asked for with; None: they never were."""
        return self._peers.answers.bandwidth or None

    def check(self, asked: Round) -> None:
        """PeerError for a bandwidth that nobody finds who has asked for features before."""
        first = self._peers.answers.bandwidth
        if asked.purpose != PHASES or not first or first / FARTHEST <= asked.bandwidth <= first * FARTHEST:
            return
        text = (
            f"a round with the bandwidth {asked.bandwidth:g}, and features were first asked for with {first:g}: at a scale so far "
            "off their phases show projections of this party's columns without whole turns. If the model is to begin anew with it, "
            "begin anew at this party too (streamfl reset)"
        )
        self._figures.counts["implausible_bandwidths"] += 1
        self._notices.say("implausible_bandwidth", text)
        if self._refuses:
            raise PeerError("implausible", text)

    def note(self, asked: Round) -> None:
        """It is answered."""
        answers = self._peers.answers
        if asked.purpose == DISTANCES:
            answers.distances += 1
            self._peers.answered()
            if answers.distances > MANY_DISTANCES:
                self._notices.say(
                    "many_distances",
                    f"{answers.distances} rounds of distances were answered in a partition, and a federation needs one: ask the "
                    "active party why it goes on asking",
                )
        elif asked.purpose == PHASES and not answers.bandwidth:
            answers.bandwidth = asked.bandwidth
            self._peers.answered()
        elif asked.purpose == PHASES and asked.bandwidth != answers.bandwidth and self._draws_anew and not self._rescaled:
            self._rescaled = True
            self._parts.remember(b"rescaled", self._rescaled)

    def spent(self) -> None:
        """An entity is asked for that has told all that it may."""
        self._figures.counts["spent_entities"] += 1
        self._notices.say("spent_entity", SPENT)

    def restore(self, value: bytes) -> None:
        self._rescaled = msgspec.msgpack.decode(value, type=bool)
