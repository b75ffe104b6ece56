"""The messages that a party sends and accepts at its present place in a training."""

from __future__ import annotations

import msgspec

from streamfl.contract.role import BadRecord
from streamfl.encoding.wire import VERSION
from streamfl.quasi_newton.config import QuasiNewtonSettings
from streamfl.quasi_newton.encryption.randomness import RandomnessContext
from streamfl.quasi_newton.encryption.scheme import scheme_of
from streamfl.quasi_newton.members.given import PartyGiven
from streamfl.quasi_newton.members.traffic import TrafficCounter
from streamfl.quasi_newton.members.training_progress import ALIGNING, TrainingProgress
from streamfl.quasi_newton.messages import Message, records_of, seal, unseal
from streamfl.quasi_newton.metrics import MemberCounts
from streamfl.quasi_newton.state import PROGRESS
from streamfl.roles.partitioned_role import Outbox
from streamfl.state.changelog import ChangedParts

__all__ = ["MessageExchange"]

VECTORS = ("outputs", "residuals", "gradient", "dots", "sums")


class MessageExchange:
    """The owner of the party's progress. Every message belongs to a place in a training, and is accepted only
    at that place."""

    def __init__(
        self,
        parts: ChangedParts,
        settings: QuasiNewtonSettings,
        given: PartyGiven,
        outbox: Outbox[MemberCounts],
    ) -> None:
        self._settings = settings
        self._given = given
        self._outbox = outbox
        self.progress = TrainingProgress()
        self._remember = parts.single(PROGRESS, TrainingProgress, self.progress.become)
        self.traffic = TrafficCounter()

    def message(self, kind: str, content: bytes, alignment: bytes | None = None) -> Message:
        settings, progress = self._settings, self.progress
        known = progress.alignment if alignment is None else alignment
        return Message(
            VERSION,
            settings.fingerprint,
            settings.required_party(),
            progress.run,
            progress.round,
            kind,
            known,
            content,
        )

    def _send(self, channel: str, message: Message, content: bytes) -> None:
        """Send and count a message. content: as it was before sealing, to count its ciphertexts."""
        size = self._outbox.send(channel, records_of(self._given.codec, message))
        if message.kind in VECTORS:
            ciphertexts = len(content) // scheme_of(self.progress.modulus, b"").unit_bytes
            self._outbox.counts.ciphertexts_sent += ciphertexts
            self.traffic.add(message.run, message.round // 2, ciphertexts, size)

    def upload(self, kind: str, content: bytes) -> None:
        """Send a message to the coordinator."""
        self._send("uploads", self.message(kind, content), content)

    def tell(self, channel: str, other: str, kind: str, content: bytes) -> None:
        """Seal a message and send it to another party."""
        settings = self._settings
        topic = settings.linked(other, "residuals" if settings.is_guest else "outputs")
        self._send(channel, seal(self.message(kind, b""), content, self._given.links[other], topic), content)

    def unsealed(self, other: str, message: Message) -> bytes:
        """The content of another party's message, unsealed. BadRecord if that party did not send it."""
        settings = self._settings
        topic = settings.linked(other, "outputs" if settings.is_guest else "residuals")
        return unseal(message, other, self._given.links[other], topic)

    def place(self, kind: str) -> RandomnessContext:
        settings, progress = self._settings, self.progress
        return RandomnessContext(
            settings.federation.name, str(progress.run), settings.required_party(), progress.round, kind
        )

    def session(self, host: str, run: int | None = None) -> bytes:
        """The name of the alignment with a host. run: its number; None: the present run."""
        number = self.progress.run if run is None else run
        return msgspec.msgpack.encode(
            (self._settings.federation.name, number, self._settings.federation.guest_party, host)
        )

    def remember(self) -> None:
        self._remember(self.progress)

    def repeated(self) -> None:
        """Count a message that came again, or too late."""
        self._outbox.counts.repeated_messages += 1

    def is_present(self, message: Message, phase: int) -> bool:
        """Whether a message belongs to the present place; False if it belongs to an earlier one. BadRecord if
        to a later one.

        phase: in which the party waits for such messages.
        """
        progress = self.progress
        now, then = (progress.run, progress.round, progress.phase), (message.run, message.round, phase)
        if then < now:
            self.repeated()
            return False
        if then > now:
            raise BadRecord(
                "implausible",
                f"{message.kind} of run {message.run}, round {message.round}: nothing led to it",
            )
        if phase > ALIGNING and message.alignment != progress.alignment:
            raise BadRecord("alignment", "other entities are in common there")
        return True
