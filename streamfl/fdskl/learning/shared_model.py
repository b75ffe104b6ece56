"""A model whose coefficients lie at several active parties: whose turn it is, others' iterations, and this
party's part of f.

Iterations are made one after the other, in the order in which they were asked for in one log that all active
parties write and read. So each sees exactly those before it, and the version of the model is the number of
iterations that have ended in the log."""

from __future__ import annotations

from collections.abc import Callable

from streamfl.contract.role import BadRecord, Send
from streamfl.encoding.wire import VERSION, fingerprint
from streamfl.fdskl.config import FdsklSettings
from streamfl.fdskl.learning.iteration import SharedSgdIteration
from streamfl.fdskl.learning.iteration_queue import IterationQueue
from streamfl.fdskl.learning.model import KernelModel
from streamfl.fdskl.learning.own_outputs import OwnOutputs
from streamfl.fdskl.messages import TURN, Turn
from streamfl.fdskl.party.partition import PartyPartition
from streamfl.fdskl.sums.rounds import Rounds

__all__ = ["ANOTHER_LEARNING", "SharedModel"]

ANOTHER_LEARNING = (
    "another loss, label range or number of features an iteration was used: active parties have to agree on "
    "them"
)


class SharedModel:
    """The shared model of one partition.

    settings: of the party.
    sign: signs a turn in a partition of the log.
    partition: what every party has of the partition.
    model, rounds: this party's.
    """

    def __init__(
        self,
        settings: FdsklSettings,
        sign: Callable[[Turn, int], Turn],
        partition: PartyPartition,
        model: KernelModel,
        rounds: Rounds,
    ) -> None:
        learning = settings.learning
        self._settings = settings
        self._name = settings.required_party()
        # Active parties have to agree on more than the others.
        self.fingerprint = fingerprint(
            settings.fingerprint,
            learning.loss,
            learning.positive_weight,
            settings.required_labels("the active party").label_range if learning.loss == "square" else (),
            learning.block_features,
        )
        self._sign = sign
        self._partition = partition
        self._model = model
        self.queue = IterationQueue(partition.parts, settings.federation.actives, settings.own)
        sums = partition.sums
        self.outputs = sums.outputs = OwnOutputs(
            model,
            rounds,
            settings.aggregation.circle_bits // 8,
            sums.try_again,
            lambda key: sums.pending.abandon(key, "version"),
        )

    def take_turn(self, message: Turn) -> bool:
        """Take the next message in the log. False for one that came before. BadRecord for one that no active
        party can send."""
        settings, names = self._settings, self._settings.federation.parties
        party = names.index(message.sender) if message.sender in names else -1
        if party not in settings.federation.actives:
            raise BadRecord("forged", f"{message.sender!r} is no active party of this federation")
        if message.fingerprint != self.fingerprint:
            raise BadRecord("configuration", ANOTHER_LEARNING)
        if not message.learnt:
            return self.queue.take_request(party, message.number)
        self.queue.check_end(party, message.number)
        if not self.queue.is_first(party, message.number):
            return False
        if party != settings.own:
            if message.model != self._model.version:
                raise BadRecord(
                    "implausible",
                    f"iteration {message.model} of {message.sender!r}, and {self._model.version} is the "
                    "latest here: this party's state, or the log of turns, has lost some",
                )
            self._model.take_turn(message.first, message.decay, message.bandwidth)
            self.outputs.model_changed()
        self.queue.take_end()
        return True

    def ask(self) -> Send:
        """Ask for a turn: this party has enough labels for an iteration."""
        return self._said(
            Turn(VERSION, self.fingerprint, self._name, self.queue.ask(), False, 0, 0, 1.0, 1.0)
        )

    def end(self, iteration: SharedSgdIteration) -> Send:
        """Announce that this party's iteration has ended, and with it the next version of the model."""
        model = self._model
        self.outputs.model_changed()
        assert model.bandwidth is not None
        before, first = model.version - 1, model.oldest.first
        own = self.fingerprint, self._name, self.queue.end()
        return self._said(Turn(VERSION, *own, True, before, first, model.bandwidth, iteration.decay))

    def _said(self, message: Turn) -> Send:
        partition = self._partition.partition
        return Send("turns", None, TURN.encode(self._sign(message, partition)), partition)
