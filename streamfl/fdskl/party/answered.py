"""What a party has answered in a partition's life, and which rounds ask for more than learning needs.

This does not keep the columns from a party that may ask for phases. It makes asking slower, and shows it to
the party's operator."""

from __future__ import annotations

from streamfl.contract.role import BadRecord
from streamfl.fdskl.messages import DISTANCES, PHASES, Round
from streamfl.fdskl.metrics import PartyMetrics
from streamfl.fdskl.party.peers import Peers
from streamfl.fdskl.state import RESCALED
from streamfl.roles.notices import Notices
from streamfl.state.changelog import ChangedParts

__all__ = ["Answered"]

# Largest factor between bandwidths. An active party that begins anew measures about the same again on the
# same columns.
FARTHEST = 4.0
# Rounds of distances that a federation may need: one, and repetitions of those abandoned, or lost with the
# active party's state.
MANY_DISTANCES = 16


class Answered:
    """The answers in one partition. :class:`Peers` remembers them.

    ``rescaled`` is remembered once features of a second bandwidth were drawn anew.

    A release before 0.2 would draw those like the first ones, and no model is of such features. It refuses
    this record because it does not know it. It ignores everything else here.

    parts: where it is remembered.
    peers: of the partition.
    draws_anew: whether features of another bandwidth are drawn anew, as private ones are.
    refuses: whether too much is refused; False: it is only reported, because without keys a stranger may have
    asked first.
    metrics, notices: for the operator.
    """

    def __init__(
        self,
        parts: ChangedParts,
        peers: Peers,
        draws_anew: bool,
        refuses: bool,
        metrics: PartyMetrics,
        notices: Notices,
    ) -> None:
        self._remember = parts.single(RESCALED, bool, self._restore)
        self._peers = peers
        self._draws_anew = draws_anew
        self._refuses = refuses
        self._metrics = metrics
        self._notices = notices
        self._rescaled = False

    @property
    def bandwidth(self) -> float | None:
        """The bandwidth of the first round that asked for features; None: there was none."""
        return self._peers.answers.bandwidth or None

    def check(self, asked: Round) -> None:
        """Report a bandwidth that is too far from the first one. BadRecord for it if ``refuses`` is set."""
        first = self._peers.answers.bandwidth
        if asked.purpose != PHASES or not first or first / FARTHEST <= asked.bandwidth <= first * FARTHEST:
            return
        text = (
            f"a round with the bandwidth {asked.bandwidth:g}, but features were first requested with "
            f"{first:g}: at such a different scale their phases reveal projections of this party's columns. "
            "If the model starts over with this bandwidth, use another federation.name at every member"
        )
        self._metrics.implausible_bandwidths += 1
        self._notices.say("implausible_bandwidth", text)
        if self._refuses:
            raise BadRecord("implausible", text)

    def note(self, asked: Round) -> None:
        """Note that the round is answered."""
        answers = self._peers.answers
        if asked.purpose == DISTANCES:
            answers.distances += 1
            self._peers.answered()
            if answers.distances > MANY_DISTANCES:
                self._notices.say(
                    "many_distances",
                    f"{answers.distances} rounds of distances were answered in a partition, but a federation "
                    "needs one: ask the active party why it keeps asking",
                )
        elif asked.purpose == PHASES and not answers.bandwidth:
            answers.bandwidth = asked.bandwidth
            self._peers.answered()
        elif (
            asked.purpose == PHASES
            and asked.bandwidth != answers.bandwidth
            and self._draws_anew
            and not self._rescaled
        ):
            self._rescaled = True
            self._remember(self._rescaled)

    def spent(self) -> None:
        """Count and report that an entity was asked for that has reached its limit of features."""
        self._metrics.spent_entities += 1
        self._notices.say("spent_entity")

    def _restore(self, rescaled: bool) -> None:
        self._rescaled = rescaled
