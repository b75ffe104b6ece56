"""How a party begins a run, and hears that one has failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from streamfl.contract.role import BadRecord
from streamfl.encoding.wire import Count
from streamfl.quasi_newton.encryption.key_file import OTHER_KEY
from streamfl.quasi_newton.encryption.keys import PaillierPublicKey, digest_of
from streamfl.quasi_newton.messages import ANOTHER, Begin, Message, read_content
from streamfl.quasi_newton.state import EARLY_BEGIN
from streamfl.quasi_newton.training.training_progress import ALIGNING, FAILED, TRAINED, TrainingProgress

if TYPE_CHECKING:
    from streamfl.quasi_newton.training.party import PartyTask

__all__ = ["Beginning"]

# As many bytes as the largest modulus that settings allow, and more.
MOST_MODULUS_BYTES = 4096


class _EarlyBegin(msgspec.Struct, array_like=True, frozen=True):
    """A run that has begun at the coordinator. run: 0: none. modulus: of its key."""

    run: Count = 0
    modulus: Annotated[bytes, msgspec.Meta(max_length=MOST_MODULUS_BYTES)] = b""


class Beginning:
    """Begins a run once the coordinator has begun it and the party is ready, in whichever order.

    The coordinator may begin a run before a party is ready, and is never told of it: what parties of another
    federation of that name said may lie in its topics, and a stranger may write it. A party that refused such
    a run would wait for it for ever.
    """

    def __init__(self, party: PartyTask) -> None:
        self._party = party
        self._remember_early = party.parts.single(EARLY_BEGIN, _EarlyBegin, self._restore)
        self._early = _EarlyBegin()

    def take(self, message: Message) -> None:
        party, progress = self._party, self._party.progress
        if message.run <= progress.run:
            party.exchange.repeated()
            return
        if message.run != progress.run + 1:
            raise BadRecord("implausible", f"run {message.run} begins after run {progress.run}")
        begin: Begin = read_content(message.content, Begin)
        if progress.has_said:
            self._begin(message.run, begin.key)
        elif self._early.run == message.run:
            party.exchange.repeated()
        else:
            self._check(begin.key)
            self._early = _EarlyBegin(message.run, begin.key)
            self._remember_early(self._early)

    def go_on(self) -> None:
        """Begin the run that began before the party was ready, now that it is."""
        party, early = self._party, self._early
        if early.run != party.progress.run + 1:
            return
        try:
            self._begin(early.run, early.modulus)
        except BadRecord:
            # The settings have another key since then.
            self._end(early, OTHER_KEY)

    def take_failed(self, message: Message) -> None:
        party, progress, early = self._party, self._party.progress, self._early
        if message.run == progress.run + 1 == early.run:
            self._end(early, "it was over before this party was ready")
        elif message.run < progress.run or progress.phase in (FAILED, TRAINED):
            party.exchange.repeated()
        elif message.run > progress.run or not party.owed:
            raise BadRecord("implausible", f"training {message.run} has failed: nothing led to it")
        else:
            # The coordinator hears of it too. Without keys a stranger may have said it, and all others would
            # wait in this training for ever.
            party.fail("another party could not continue, see its log")

    def _end(self, early: _EarlyBegin, text: str) -> None:
        """End a run that this party has no part in, so that it counts runs as the others do."""
        self._forget_early()
        self._party.progress.become(TrainingProgress(early.run, ALIGNING, 0, modulus=early.modulus))
        self._party.fail(text)

    def _forget_early(self) -> None:
        if self._early.run:
            self._early = _EarlyBegin()
            self._party.parts.forget(EARLY_BEGIN.prefix)

    def _check(self, modulus: bytes) -> None:
        """BadRecord for a key that the settings do not name."""
        encryption = self._party.settings.encryption
        if encryption.encrypted:
            PaillierPublicKey.from_bytes(modulus, encryption.key_bits, encryption.key_fingerprint or "")
        elif modulus:
            raise BadRecord("configuration", ANOTHER)

    def _begin(self, run: int, modulus: bytes) -> None:
        party, progress = self._party, self._party.progress
        encryption, key = party.settings.encryption, digest_of(modulus)
        if encryption.encrypted and key != encryption.agreed_key and key in progress.told:
            # This party reported ready before its configuration changed. The others wait for it, so it has to
            # tell them.
            self._forget_early()
            progress.become(TrainingProgress(run, ALIGNING, 0, modulus=modulus))
            party.fail(OTHER_KEY)
            return
        self._check(modulus)
        self._forget_early()
        progress.become(TrainingProgress(run, ALIGNING, 0, modulus=modulus))
        party.readiness.began()
        party.exchange.remember()
        party.align()

    def _restore(self, early: _EarlyBegin) -> None:
        self._early = early
