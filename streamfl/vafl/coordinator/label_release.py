"""Releases of labels by the coordinator: with noise, counted in a ledger, and within a budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import Measurement
from streamfl.encoding.wire import fingerprint as fingerprint_of
from streamfl.privacy.accountant import DELTA, cost_of, epsilon_of
from streamfl.privacy.keyed_noise import noisy
from streamfl.privacy.ledger import Ledger
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.coordinator.alignment import Decision
from streamfl.vafl.given import CoordinatorGiven
from streamfl.vafl.metrics import LabelMetrics

__all__ = ["RELEASED_WITHOUT_NOISE", "LabelRelease"]

RELEASED_WITHOUT_NOISE = (
    "the coordinator has released labels without noise before, so no mu holds for them; start over with "
    "another federation.name at all members, or leave privacy.reply_noise out"
)


class LabelRelease:
    """Noise on the label's part of d l / d outputs.

    settings, given: the coordinator's.
    """

    def __init__(self, settings: VaflSettings, given: CoordinatorGiven) -> None:
        self._loss = given.loss
        self.noise = noise = settings.privacy.reply_noise
        self._secret = given.secret
        self._fingerprint = settings.fingerprint
        self._budget = settings.privacy.budget_mu
        # mu^2 of releasing one label.
        self._cost = cost_of(given.loss.sensitivity, noise) if noise else 0.0
        # Identifies the noise, and reveals nothing of the secret.
        self._name = fingerprint_of("label", noise, given.secret)

    def withhold(
        self, ledger: Ledger, names: Sequence[str], decision: Decision, withheld: dict[str, int]
    ) -> None:
        """Count label releases in the ledger, and withhold those that are not allowed.

        This comes before requests: no party is asked for an embedding of an entity that cannot be learnt
        from.

        withheld: counts of the reasons.
        """
        for place in np.flatnonzero(decision.answers).tolist():
            # A label released with the present noise gets the same noise again, which reveals no more and
            # costs nothing.
            if decision.releases[place] and decision.noises[place] == self._name:
                continue
            refusal = ledger.refusal(names[place], self._cost)
            if refusal is not None:
                decision.withheld[place] = True
                withheld[refusal] += 1
            elif not decision.asks[place]:
                decision.releases[place], decision.noises[place] = (
                    ledger.spend(names[place], self._cost),
                    self._name,
                )

    def gradient(
        self,
        partition: int,
        names: Sequence[str],
        releases: Sequence[int],
        labels: NDArray[np.float64],
        outputs: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """d l / d outputs with the noise that hides the label, (n, outputs).

        The noise is added to the label's part before anything is rounded. That part does not depend on the
        outputs. Beside a large output, which a party can choose, rounding would make the label's part larger
        than it is.

        names, releases: the entities, and how often their labels were released.
        """
        nothing, none = np.zeros_like(outputs), np.zeros_like(labels)
        hidden = self._loss.gradient(nothing, labels) - self._loss.gradient(nothing, none)
        told = [self._noisy_label(partition, *one) for one in zip(hidden, names, releases, strict=True)]
        return np.asarray(self._loss.gradient(outputs, none) + np.array(told), dtype=np.float64)

    def _noisy_label(
        self, partition: int, part: NDArray[np.float64], name: str, releases: int
    ) -> NDArray[np.float64]:
        # Within one release the noise is the same for every party and every time, as if the label were told
        # once. So several gradients, or several parties together, cannot average it out.
        # Another release is counted.
        place = (self._fingerprint, partition, self._loss.name, name, releases)
        return noisy(part, self.noise, 1.0, self._secret, "label", *place)

    def measure(self, mu: float) -> Iterable[Measurement]:
        """The metrics. mu: the largest of an entity's label."""
        if not self.noise:
            return
        if self._budget is not None:
            yield LabelMetrics.label_budget_mu(self._budget)
        yield LabelMetrics.label_mu(mu)
        yield LabelMetrics.label_epsilon(epsilon_of(mu, DELTA))
