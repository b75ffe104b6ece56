"""What a party measures of its releases."""

from __future__ import annotations

from collections.abc import Iterable

from streamfl.contract.role import Measurement
from streamfl.privacy.accountant import DELTA, epsilon_of
from streamfl.vafl.metrics import PartyMetrics
from streamfl.vafl.privacy import Mechanism

__all__ = ["measure_privacy"]


def measure_privacy(mechanism: Mechanism, mu: float) -> Iterable[Measurement]:
    """The largest mu released of an entity, and the budget."""
    if mechanism.budget is not None:
        yield PartyMetrics.privacy_budget_mu(mechanism.budget)
    if mechanism.guarantees:
        yield PartyMetrics.privacy_mu(mu)
        yield PartyMetrics.privacy_epsilon(epsilon_of(mu, DELTA))
    else:
        yield PartyMetrics.privacy_mu_per_release(mu)
