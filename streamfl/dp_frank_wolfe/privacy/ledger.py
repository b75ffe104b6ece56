"""A party's ledger: what each entity has spent, the chains of releases, and the anchor's file beside them.

The ledger belongs to the data, whichever federation learns from them. Each release is a link of a chain, one
chain for fits and one for predictions:

    head_n = SHA-256(head_(n-1), federation, party, window, iteration, kind, digest of what led to it, digest
    of what is released)

A head is made only of what others may see, so messages carry it. The link is a hash of the head and of the
rows beneath, which nobody else sees. It is noted in the anchor before the release leaves. A state that was
rolled back would release other content in the place of a link, or by chance the same content of other rows.
The anchor refuses both.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import chain

import msgspec

from streamfl.contract.role import BadRecord, Measurement
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.metrics import MemberCounts, PartyMetrics
from streamfl.dp_frank_wolfe.party.given import PartyGiven
from streamfl.dp_frank_wolfe.privacy.budget import SPARE
from streamfl.dp_frank_wolfe.privacy.ledger_state import (
    LatestRelease,
    LedgerContent,
    PrivacyTerms,
    ReleaseChain,
)
from streamfl.dp_frank_wolfe.state import CHAIN, EXACT, LATEST, SPENT, TERMS, WHOLE
from streamfl.encoding.changelog_checks import check_name, check_number
from streamfl.privacy.anchor import LINK_BYTES, RESTORE, examine_link, note_link, nothing_released
from streamfl.privacy.summed_ledger import SummedLedger
from streamfl.privacy.zcdp import epsilon_of
from streamfl.roles.partitioned_role import Outbox
from streamfl.state.changelog import ChangedParts

__all__ = ["FITS", "PREDICTIONS", "PartyLedger", "digest", "digest_of_question"]

FITS, PREDICTIONS = range(2)
"""The chains, which are lanes of the anchor."""
Then = Callable[[int, bytes], None]


class PartyLedger:
    """What a party's entities have spent, and the chains of its releases. ``parts``: they have a changelog of
    their own."""

    def __init__(self, public: Public, given: PartyGiven, outbox: Outbox[MemberCounts]) -> None:
        self._public = public
        self._anchor = given.anchor
        self._identity = given.identity
        self._outbox = outbox
        privacy, private = public.settings.privacy, public.settings.privacy.is_private
        self._federation = public.settings.federation.name
        self._party = own = public.settings.required_party()
        self._limit = privacy.ledger_limit
        self.parts = ChangedParts("a ledger")
        self._remember_terms = self.parts.single(TERMS, PrivacyTerms, self._restore_terms)
        self._remember_exact = self.parts.single(EXACT, str, self._restore_exact)
        self._remember_whole = self.parts.single(WHOLE, LedgerContent, self._restore_whole)
        self._kept_chains = self.parts.named(CHAIN, check_number, ReleaseChain, self._restore_chain)
        self._kept_latest = self.parts.named(LATEST, check_name, LatestRelease, self._restore_latest)
        self.fit_cost = public.fit_cost(own) if private else math.inf
        """Cost that each entity of a window is charged when the window is frozen."""
        budget = public.party_cost(own) if private else None
        self.spend = SummedLedger(self._limit, budget)
        self.parts.register(SPENT.prefix, self.spend.restore)
        self._chains = [ReleaseChain(self._identity), ReleaseChain(self._identity)]
        # Releases that wait for the one before them to be noted.
        self._waiting: deque[Callable[[], None]] = deque()
        self._noting = False
        self._latest: dict[str, LatestRelease] = {}
        shares = {party: public.share(party) for party in public.parties}
        self._own_terms = PrivacyTerms(privacy.epsilon, privacy.delta, shares) if private else None
        self._terms: PrivacyTerms | None = None
        self._keeps_to_noise = private and public.settings.serving.mode != "exact"
        self._exact = ""
        self.trouble: str | None = None
        """Why nothing may be released."""
        self._whole = LedgerContent()
        self._has_gap = False
        self._epsilon = (0.0, 0.0)
        self.waiting_predictions: Callable[[], int] = int
        """How many remembered parts of predictions will be sent, perhaps for the second time."""
        # Number of releases for fits that the file had when it was examined. None: it was not examined.
        self._noted_fits: int | None = None

    def number(self, lane: int = FITS) -> int:
        """Number of releases so far."""
        return self._chains[lane].number

    def head(self, lane: int = FITS) -> bytes:
        """The chain's last link, as the anchor has it."""
        return self._chains[lane].link

    @property
    def may_predict(self) -> bool:
        """Whether all releases for fits in the file are charged here. What was noted before a crash is done
        again first."""
        return self.trouble is None and self._noted_fits is not None and self.number() >= self._noted_fits

    @property
    def fits_ahead(self) -> int:
        """Number of releases for fits in the file that are not yet charged here."""
        return max(0, (self._noted_fits or 0) - self.number())

    @property
    def window(self) -> int:
        """The latest window that was frozen for this federation."""
        return self._own.window

    @property
    def _own(self) -> LatestRelease:
        return self._latest.get(self._federation, LatestRelease())

    def allows(self, entity: str, waiting: int = 0) -> bool:
        """Whether an entity may take part in another fit.

        waiting: number of entities that may be charged before it. The ledger needs room for them too.
        """
        if self.spend.refusal(entity, self.fit_cost) is not None:
            return False
        return self.spend.times(entity) > 0 or len(self.spend) + waiting < self._limit

    def refusal(self, entities: Collection[str]) -> str | None:
        """Why these may not take part in a fit together: "budget" or "ledger"; None if they may."""
        return self.spend.refusal_of_all(entities, self.fit_cost)

    def charge_fit(self, entities: Sequence[str]) -> None:
        """Charges the entities of a fit. Call it with the window's link, before the window's releases."""
        if self._terms is None and self._own_terms is not None:
            self._terms = self._own_terms
            self._remember_terms(self._terms)
        for entity in entities:
            self.spend.spend(entity, self.fit_cost)
        self._outbox.counts.charged_entities += len(entities)

    @property
    def largest(self) -> float:
        """Largest cost of any entity. Infinite if anything was released without noise."""
        return math.inf if self._exact else self.spend.largest

    def tell_exactly(self) -> None:
        """Records that parts of predictions are sent without noise from now on. The ledger backs no promise
        afterwards.

        It does not remember of which entities. So this ends no fit of this federation, and does not limit
        whom it predicts."""
        if not self._exact:
            self._exact = self._federation
            self._remember_exact(self._exact)

    def check_follows(self, link: int) -> None:
        """Raises BadRecord if this federation's latest link of fits is not ``link``: the state beside it was
        rolled back."""
        if not self.follows(link):
            raise self._held_back()

    def follows(self, link: int) -> bool:
        """Whether this federation's latest link of fits is ``link``. If not, the ledger is in trouble."""
        if self._own.link == link:
            return True
        why = (
            f"the state was rolled back: it goes on behind link {link}, the ledger's topic has link "
            f"{self._own.link} of this federation; if it was deleted to begin anew, use another "
            "federation.name at every member"
        )
        self._refused(nothing_released(why))
        return False

    def release(
        self,
        window: int,
        iteration: int,
        kind: str,
        heard: bytes,
        content: bytes,
        rows: bytes,
        then: Then,
        lane: int = FITS,
    ) -> None:
        """Adds a link, then calls ``then`` with its number and the chain's head. Releases nothing if the
        ledger is in trouble.

        In the chain of fits it then raises BadRecord for the message that led to the release. The dead
        letters keep that message, so that it can be replayed once topic and file agree.

        window, iteration, kind: where the release belongs.
        heard: digest of the message that led to it.
        content: what is released, as others will see it.
        rows: digest of the rows that it is computed from, which nobody else sees.
        lane: the chain that the release belongs to.
        """
        if self._noting:
            self._waiting.append(
                lambda: self.release(window, iteration, kind, heard, content, rows, then, lane)
            )
            return
        if self.trouble is not None:
            self._refused(self.trouble)
            if lane == FITS:
                raise self._held_back()
            return
        place = (self._federation, self._party, window, iteration, kind)
        before = self._chains[lane].head or self._identity
        head = digest(before, msgspec.msgpack.encode(place), heard, digest(content))[:LINK_BYTES]
        number = self.number(lane) + 1
        added = ReleaseChain(self._identity, number, head, digest(head, rows)[:LINK_BYTES])

        def noted(refusal: bytes) -> None:
            self._noting = False
            if refusal:
                self._refused(refusal.decode())
            else:
                self._add(lane, added, window)
                then(number, head)
            while self._waiting and not self._noting:
                self._waiting.popleft()()
            if refusal and lane == FITS:
                raise self._held_back()

        if self._anchor is None:
            noted(b"")
        else:
            self._noting = True
            # Parts that were noted before a crash are sent again, before or after this. No fit is ahead then:
            # see may_predict. What is further came from a second worker, or is of a newer state.
            other, waiting = (PREDICTIONS, self.waiting_predictions()) if lane == FITS else (FITS, 0)
            most = {other: self.number(other) + waiting}
            self._outbox.ask(note_link, self._work(number, added.link, lane, self.head(lane), most), noted)

    def _add(self, lane: int, chain: ReleaseChain, window: int) -> None:
        """Keep the chain with its new link, which the anchor has."""
        self._chains[lane] = chain
        self._kept_chains.remember(lane, chain)
        self._outbox.counts.releases += 1
        if lane == FITS:
            self._latest[self._federation] = LatestRelease(window, chain.number)
            self._kept_latest.remember(self._federation, self._latest[self._federation])

    def look(self, link: int) -> None:
        """Checks a restored ledger: whether it is whole, and whether the anchor's file has come as far.

        link: of this federation's latest release for a fit, as the state beside the ledger has it.
        """
        self.check_whole()
        if link > self._own.link:
            self._complain(
                f"the ledger's topic was rolled back or truncated: it has link {self._own.link} of this "
                f"federation, and the party's state goes on behind link {link}"
            )
        if self._anchor is None:
            self._noted_fits = 0
        elif self.trouble is None:
            for lane, known in enumerate(self._chains):
                self._outbox.ask(
                    examine_link, self._work(known.number, known.link, lane), partial(self._looked, lane)
                )

    def check_whole(self) -> None:
        """Puts the ledger in trouble if parts of it were not restored."""
        if self._whole != (found := self._all_of_it()):
            self._has_gap = True
            found_in_it = f"{found.entities} were found"
            if self._whole.entities == found.entities:
                found_in_it = "what was found of them, or of the releases, is not what was written last"
            self._complain(
                "the ledger's topic was truncated, or records of it were lost: it was written with "
                f"{self._whole.entities} entities, and {found_in_it}"
            )

    def changed_state(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Keys and values of what changed since the last call."""
        # A ledger with a gap is never recorded as whole, whatever is charged meanwhile.
        if (self.parts or self.spend.has_changed) and not self._has_gap:
            self._whole = self._all_of_it()
            self._remember_whole(self._whole)
        return chain(self.parts.changed_state(), self.spend.changed_state())

    def _restore_terms(self, terms: PrivacyTerms) -> None:
        self._terms = terms
        if self._own_terms not in (None, terms):
            self._complain(
                f"the ledger's entities were promised epsilon = {terms.epsilon:g} at delta = {terms.delta:g} "
                f"with shares {terms.shares}, and under other terms the promise would not hold",
                "set the same again, in privacy and federation.parties, or use another ledger for other "
                "people",
            )

    def _restore_exact(self, federation: str) -> None:
        self._exact = check_name(federation.encode())
        if self._keeps_to_noise:
            self._complain(
                f"the federation {self._exact!r} sent exact parts of predictions of the ledger's entities, "
                "with "
                'serving.mode = "exact", and no epsilon holds after that',
                "use another ledger for other people",
            )

    def _restore_whole(self, whole: LedgerContent) -> None:
        self._whole = whole

    def _restore_chain(self, lane: int, found: ReleaseChain) -> None:
        if lane >= len(self._chains):
            raise BadRecord(
                "malformed", f"a chain {lane} in the ledger, which has {len(self._chains)}, from 0"
            )
        self._chains[lane] = found
        if found.identity != self._identity:
            self._complain(
                "the ledger's topic was begun with another ledger file", "put back the file of the topic"
            )

    def _restore_latest(self, federation: str, latest: LatestRelease) -> None:
        self._latest[federation] = latest

    def measure(self) -> Iterator[Measurement]:
        """Gauges of the entity of which most was released, and of the chains' length."""
        privacy, largest = self._public.settings.privacy, self.largest
        if self._epsilon[0] != largest:
            self._epsilon = (
                largest,
                epsilon_of(largest / self._public.share(self._party), privacy.delta * (1 - SPARE)),
            )
        yield PartyMetrics.epsilon(self._epsilon[1])
        yield PartyMetrics.budget_epsilon(privacy.epsilon)
        yield PartyMetrics.rho(largest)
        yield PartyMetrics.delta(privacy.delta)
        yield PartyMetrics.ledger_entities(len(self.spend))
        yield PartyMetrics.ledger_links(sum(one.number for one in self._chains))

    def _all_of_it(self) -> LedgerContent:
        if not (
            any(one.number for one in self._chains)
            or self._latest
            or self._terms
            or self._exact
            or len(self.spend)
        ):
            return LedgerContent()
        remembered = (self._chains, sorted(self._latest.items()), self._terms, self._exact)
        others = msgspec.msgpack.encode(remembered, order="sorted")
        return LedgerContent(len(self.spend), digest(self.spend.sum, others))

    def _work(self, *given: object) -> bytes:
        anchor = self._anchor
        assert anchor is not None
        return msgspec.msgpack.encode((anchor.path, anchor.ledger, anchor.party, anchor.identity, *given))

    def _looked(self, lane: int, found: bytes) -> None:
        if not found.isdigit():
            self._tell(found.decode())
        elif lane == FITS:
            self._noted_fits = self.number() + int(found)

    def _refused(self, told: str) -> None:
        self._outbox.counts.refused_releases += 1
        self._tell(told)

    def _held_back(self) -> BadRecord:
        return BadRecord("ledger", f"{self.trouble}; then replay this message from the dead letters")

    def _complain(self, why: str, what_to_do: str = RESTORE) -> None:
        self._tell(nothing_released(why, what_to_do))

    def _tell(self, told: str) -> None:
        self.trouble = self.trouble or told
        self._outbox.notices.say("ledger", self.trouble)


def digest_of_question(kind: str, iteration: int, content: bytes) -> bytes:
    """By which a party knows a message of the server again, and names it to the server."""
    return digest(kind.encode(), b"%d" % iteration, content)


def digest(*parts: bytes) -> bytes:
    """SHA-256 of the parts, each with its length."""
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()
