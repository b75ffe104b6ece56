"""The names of entities at the server: it takes announcements, asks for them anew where they are doubtful,
and tells of names that wait or are lost."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from streamfl.dp_frank_wolfe.messages import Entities, Message, content_of, read_content
from streamfl.dp_frank_wolfe.privacy.ledger import digest
from streamfl.dp_frank_wolfe.server.announced import Announced
from streamfl.dp_frank_wolfe.server.announced_anew import AnnouncedAnew
from streamfl.dp_frank_wolfe.server.progress_timer import ProgressTimer
from streamfl.state.clock_guard import earliest

if TYPE_CHECKING:
    from streamfl.dp_frank_wolfe.server.role import ServerTask

__all__ = ["Names"]

# An announcement may be refused and replayed, so it is not told at once that it was overtaken.
LOST_SECONDS = 60.0
# Announcements of a party by which one that comes twice is known.
LATEST = 16


class Names:
    """What parties announce, and what the server does about it."""

    def __init__(self, server: ServerTask) -> None:
        self._server = server
        parts, public, patience = server.parts, server.public, server.public.settings.window.patience_seconds
        self.announced = Announced(parts, public.parties, public.settings.window.limit, server.outbox.counts)
        lost_seconds = min(LOST_SECONDS, patience)
        self.anew = AnnouncedAnew(parts, public.parties, lost_seconds, patience)
        self._progress_timer = ProgressTimer(patience)
        self._lost_timer = ProgressTimer(lost_seconds)
        # When a server without state began. 0: it had state.
        self._begun = -1.0
        # Digests of the latest announcements.
        self._latest = {party: deque[bytes](maxlen=LATEST) for party in public.parties}

    @property
    def wake_at(self) -> float | None:
        return earliest(self._progress_timer.wake_at, self._lost_timer.wake_at, self.anew.wake_at)

    @property
    def lacking(self) -> list[tuple[str, int]]:
        """Parties that have not announced all that others have, with how many lack."""
        return [(party, count) for party, count in self.announced.missing.items() if count]

    def set_back(self, now: float) -> None:
        self._progress_timer.set_back(now)
        self._lost_timer.set_back(now)
        self.anew.set_back(now)
        self._begun = min(self._begun, now)

    def pass_time(self, now: float) -> None:
        self._begin(now)
        for party in self.anew.pass_time(now):
            self.ask(party, now)

    def take(self, party: str, message: Message, now: float) -> bool:
        """Takes an announcement. False if it came before."""
        server, announced, anew = self._server, self.announced, self.anew
        self._begin(now)
        entities: Entities = read_content(message.content, Entities)
        if not entities.names and anew.is_asked(party):
            announced.begin_anew(party, message.iteration)
            anew.answered(party, message.window, now)
            server.begins_anew(party, message)
            return True
        taken = announced.take(party, message.iteration, entities)
        record = server.outbox.record
        written = 0.0 if record is None else record.timestamp
        if 0 < written < self._begun and not anew.is_known(party) and not server.window:
            # It may be of another run. If it is not, the party announces the same again.
            self.ask(party, now)
        elif not self._came_before(party, message) and taken.left_out:
            # Its number was another announcement's, or there is no room for all that was announced.
            anew.doubt(party, now)
        return taken.is_new

    def _begin(self, now: float) -> None:
        if self._begun < 0:
            self._begun = 0.0 if self._server.window or self.announced.is_begun else now

    def _came_before(self, party: str, message: Message) -> bool:
        """Whether this very announcement has come, not long ago."""
        latest, heard = self._latest[party], digest(b"%d" % message.iteration, message.content)
        came = heard in latest
        latest.append(heard)
        return came

    def ask(self, party: str, now: float) -> None:
        """Ask a party to announce anew all that waits there."""
        self.anew.ask(party, self._server.window, now)
        # The time tells this question from others: a party answers each once.
        self._server.tell(party, "entities", int(now * 1000), content_of(Entities([])))
        self._server.outbox.counts.asked_names += 1

    def look(self, gathering: bool, now: float) -> None:
        """Logs a notice if names wait for a party, because such a window waits for ever, and if names are
        lost.

        gathering: whether the server waits for names.
        """
        missing, lost = self.lacking, self.announced.lost
        self._progress_timer.see(gathering and bool(missing), self.announced.completed, now)
        self._lost_timer.see(
            bool(lost), sum(last + 1 - first for gaps in lost.values() for first, last in gaps), now
        )
        if self._lost_timer.is_due(now):
            told = ", ".join(
                f"{party!r} {' '.join(f'{first}-{last}' for first, last in gaps)}"
                for party, gaps in lost.items()
            )
            self._server.outbox.notices.say(
                "lost_names",
                f"announcements of entities have not come, although later ones have: {told}. They were "
                "refused, or deleted unread. Replay those that are dead letters. The entities in the others "
                "come into no window",
            )
        if self._progress_timer.is_due(now):
            window, server = self._server.public.settings.window, self._server
            lacking = ", ".join(f"{party!r} {count}" for party, count in missing)
            text = (
                f"no entity has become known to all parties for {window.patience_seconds:g} s: window "
                f"{server.window + 1} has {self.announced.complete} of {window.rows}, and of those that "
                f"others announced these are missing at {lacking}. They wait without a time limit: check "
                "that their records and labels come there, under the same names"
            )
            server.outbox.notices.say("names", text)
