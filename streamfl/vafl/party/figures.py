"""A party's metrics."""

from __future__ import annotations

from collections.abc import Iterable

from streamfl.contract.role import Measurement
from streamfl.privacy.accountant import DELTA, epsilon_of
from streamfl.vafl.privacy import Mechanism

__all__ = ["PartyFigures", "measure_privacy"]

HEADLINES = {"samples", "embeddings", "gradients", "steps"}
COUNTS = {
    "samples": "Samples taken",
    "embeddings": "Embeddings sent",
    "embeddings_again": "Embeddings sent because the coordinator requested newer ones",
    "gradients": "Gradients learnt from",
    "steps": "Steps taken",
    "refused_steps": "Steps not taken because a parameter would have become infinite",
}


class PartyFigures:
    """Counters of all partitions since the process started.

    counts: by name.
    ignored: replies that had no effect, by reason.
    forgotten: entities forgotten without a gradient, by reason.
    withheld: embeddings not sent and gradients not learnt from, by reason.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(COUNTS, 0)
        self.ignored = dict.fromkeys(("unknown", "superseded"), 0)
        self.forgotten = dict.fromkeys(("expired", "displaced"), 0)
        self.withheld = dict.fromkeys(("budget", "ledger", "requests"), 0)

    def measure(self, entities: int, waiting: int) -> Iterable[Measurement]:
        """The counters, and two gauges.

        entities: number of entities whose gradient has not come.
        waiting: number of samples that wait.
        """
        for name, text in COUNTS.items():
            yield Measurement(name, "counter", text, self.counts[name], (), name in HEADLINES)
        for reason, count in self.ignored.items():
            text = "Replies to an embedding that is forgotten or superseded"
            yield Measurement("ignored_replies", "counter", text, count, (("reason", reason),), True)
        for reason, count in self.forgotten.items():
            text = "Entities forgotten without a gradient: by age, or to make room"
            yield Measurement("forgotten_entities", "counter", text, count, (("reason", reason),))
        yield Measurement("entities", "gauge", "Entities whose gradient has not come", entities)
        yield Measurement("waiting_samples", "gauge", "Samples that wait until fewer are on their way", waiting, (), True)
        for reason, count in self.withheld.items():
            text = "Embeddings not sent or not learnt from: budget spent, no room in the ledger, or requested too often"
            yield Measurement("withheld_embeddings", "counter", text, count, (("reason", reason),))


def measure_privacy(mechanism: Mechanism, mu: float) -> Iterable[Measurement]:
    """The largest mu released of an entity, and the budget."""
    if mechanism.budget is not None:
        yield Measurement("privacy_budget_mu", "gauge", "mu that no entity may exceed", mechanism.budget)
    text = "mu of the entity with the largest releases (Gaussian differential privacy)"
    if mechanism.guarantees:
        yield Measurement("privacy_mu", "gauge", text, mu)
        yield Measurement("privacy_epsilon", "gauge", f"epsilon of that mu at delta = {DELTA:g}", epsilon_of(mu, DELTA))
    else:
        text += ", from its own embeddings only: what others' embeddings reveal about it is not counted, so this is no guarantee"
        yield Measurement("privacy_mu_per_release", "gauge", text, mu)
