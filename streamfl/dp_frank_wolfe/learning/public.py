"""What every member computes from its settings alone, so that no member has to trust another: blocks,
sampling, sketch, plans."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import ConfigurationError
from streamfl.contract.seeding import rng_for
from streamfl.dp_frank_wolfe.config import DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.learning.blocks import Block, Sampling
from streamfl.dp_frank_wolfe.learning.means import MeansPlan, plan_means
from streamfl.dp_frank_wolfe.learning.selection import MARGINAL, TWO_ROUND, SelectionPlan, plan_selection
from streamfl.dp_frank_wolfe.learning.sketch import IdentitySketch, SignSketch, Sketch
from streamfl.dp_frank_wolfe.privacy.budget import FitPlan, allowed_cost, claim, plan_fit
from streamfl.dp_frank_wolfe.serving.partials import PartialPlan, partial_variation
from streamfl.encoding.wire import fingerprint

__all__ = ["Public"]

# Share of a fit's cost at a party, for the means of its columns and of the label.
MEANS_SHARE = 0.05


@dataclass(frozen=True)
class Public:
    """What follows from the settings that all members share."""

    settings: DPFrankWolfeSettings

    @cached_property
    def fingerprint(self) -> int:
        """Fingerprint of all settings that have to be equal at every member."""
        own = self.settings
        bounds = own.bounds
        return fingerprint(
            "dp-frank-wolfe",
            own.federation.name,
            own.federation.seed,
            tuple((party, own.federation.columns[party]) for party in own.federation.parties),
            (own.window.rows, own.window.fits),
            (bounds.label_centre, bounds.label_bound, bounds.prediction),
            (own.privacy.epsilon, own.privacy.delta, own.privacy.insecure_test_noise),
            tuple(self.share(party) for party in own.federation.parties),
            # intercept may differ: a party that does not centre sends no means, and the server sees that.
            own.learning.model_dump_json(exclude={"intercept"}),
            own.serving.model_dump_json(),
        )

    @property
    def parties(self) -> list[str]:
        """Names of the parties, in the public order."""
        return self.settings.federation.parties

    @cached_property
    def blocks(self) -> list[Block]:
        """Each party's columns in equal parts of consecutive columns, its radius divided equally over
        them."""
        found = []
        for party in self.parties:
            parts = np.array_split(
                np.arange(self.settings.federation.columns[party]), self.settings.learning.blocks
            )
            found += [Block(party, tuple(part.tolist()), self.radius(party) / len(parts)) for part in parts]
        return found

    @cached_property
    def sampling(self) -> Sampling:
        learning = self.settings.learning
        count = learning.sampled_blocks if learning.sampling in ("nice", "distributed") else 1
        given = learning.probabilities if learning.sampling == "importance" else None
        return Sampling(
            learning.sampling, self.blocks, self.settings.federation.seed, count, tuple(given or ())
        )

    def sketch(self, window: int) -> Sketch:
        """The sketch of a window's columns. Each window has its own signs: otherwise rows of two windows
        could be compared."""
        rows, learning = self.settings.window.rows, self.settings.learning
        if learning.sketch == "identity":
            return IdentitySketch(rows)
        return SignSketch(
            rows,
            learning.sketch_rows,
            int(rng_for(self.settings.federation.seed, "window", window).integers(2**62)),
        )

    def radius(self, party: str) -> float:
        """r_k, the party's radius."""
        given = self.settings.learning.radii
        return self.settings.learning.radius / len(self.parties) if given is None else given[party]

    def model_radius(self, party: str) -> float:
        """Bound on the sum of a party's absolute weights. An estimator that chooses once has one ball for all
        parties."""
        learning = self.settings.learning
        return self.radius(party) if learning.estimator == "frank-wolfe" else learning.radius

    def share(self, party: str) -> float:
        """The party's share of the budget."""
        given = self.settings.privacy.shares
        return 1 / len(self.parties) if given is None else given[party]

    @cached_property
    def cost(self) -> float:
        """Cost of one entity, over all parties and its life."""
        privacy = self.settings.privacy
        return allowed_cost(privacy.epsilon, privacy.delta, self.settings.window.rows)

    @property
    def _serving_share(self) -> float:
        return self.settings.serving.share if self.settings.serving.mode == "private" else 0.0

    def party_cost(self, party: str) -> float:
        """Cost of one entity at a party, over its life."""
        return self.cost * self.share(party)

    def fit_cost(self, party: str) -> float:
        """Cost of one entity at a party, for one fit."""
        return self.party_cost(party) * (1 - self._serving_share) / self.settings.window.fits

    def means_plan(self, party: str) -> MeansPlan:
        """Plan of a party that centres its window."""
        return plan_means(self.fit_cost(party) * MEANS_SHARE, self.settings.federation.columns[party])

    def estimator_cost(self, party: str, centred: bool | None = None) -> float:
        """The estimator's part of a fit's cost.

        centred: whether the party's window is; None: as the settings say. A fit ends as it began, whatever
        release continues it."""
        centres = self.settings.learning.intercept if centred is None else centred
        return self.fit_cost(party) * ((1 - MEANS_SHARE) if centres else 1.0)

    def prediction_cost(self, party: str) -> float:
        """Cost of one entity at a party, for its part of one prediction. Infinite where it has no noise."""
        if self.settings.serving.mode != "private":
            return math.inf
        return self.party_cost(party) * self._serving_share / self.settings.serving.predictions

    def prediction_noise(self, weights: Mapping[str, NDArray[np.float64]]) -> float:
        """Deviation of the noise in a prediction, in the label's own unit. weights: the model's, by party."""
        plans = [PartialPlan.of(own, self.prediction_cost(party)) for party, own in weights.items()]
        return self.settings.bounds.label_bound * math.hypot(*(plan.deviation for plan in plans))

    def quota(self, party: str) -> int:
        """N_k: most columns of a party with a weight."""
        each = max(1, self.settings.learning.columns // len(self.parties))
        return min(each, self.settings.federation.columns[party])

    def fit_plan(self, party: str, window: int, centred: bool | None = None) -> FitPlan:
        """A party's plan for Frank-Wolfe. centred: as in :meth:`estimator_cost`."""
        learning = self.settings.learning
        choices = max(1, self.sampling.answers_of(party, window, learning.iterations))
        prediction = self.settings.bounds.prediction
        cost = self.estimator_cost(party, centred)
        return plan_fit(
            cost, choices, self.quota(party), prediction, self.sketch(window), learning.choice_share
        )

    def selection_plan(self, party: str, centred: bool | None = None) -> SelectionPlan:
        """A party's plan for the estimators that choose once. centred: as in :meth:`estimator_cost`."""
        shares = MARGINAL if self.settings.learning.estimator == "marginal" else TWO_ROUND
        others = sum(self.quota(other) for other in self.parties if other != party)
        return plan_selection(self.estimator_cost(party, centred), self.quota(party), others, shares)

    def epsilon(self) -> float:
        """The claimed epsilon of an entity that used its whole budget. Raises ValueError if noise cannot be
        sampled well enough."""
        if not math.isfinite(self.cost):
            return math.inf
        return claim(self.cost, self._variation, self.settings.privacy.delta)

    def check(self) -> None:
        """Raises ConfigurationError if noise for the promise cannot be drawn. No member may begin: budget
        would be spent."""
        privacy = self.settings.privacy
        try:
            # Noise has to be drawn even where nothing is promised.
            if privacy.is_private:
                self.epsilon()
            elif math.isfinite(self.cost):
                assert self._variation >= 0
        except ValueError as error:
            raise ConfigurationError(
                f"privacy.epsilon = {privacy.epsilon:g}, privacy.delta = {privacy.delta:g}: noise for them "
                f"cannot be drawn well enough: {error}. A larger delta helps, and where epsilon is small a "
                f"larger one; otherwise lower {self._costly}, or set privacy.epsilon = inf and promise "
                "nothing"
            ) from None

    @property
    def _costly(self) -> str:
        """The settings by which an entity's budget is divided."""
        learning = self.settings.learning
        keys = ["learning.columns", "window.fits"]
        if learning.estimator == "frank-wolfe":
            keys += ["learning.iterations", *(["learning.sketch_rows"] if learning.sketch == "signs" else [])]
        return ", ".join(keys + (["serving.predictions"] if self.settings.serving.mode == "private" else []))

    @cached_property
    def _variation(self) -> float:
        """Total variation of all releases of an entity in its life. Raises ValueError for noise that cannot
        be drawn."""
        rows = self.settings.window.rows
        columns = self.settings.federation.columns
        learning = self.settings.learning
        total = 0.0
        for party in self.parties:
            if learning.estimator == "frank-wolfe":
                sketch = self.sketch(1)
                own = [len(block.columns) for block in self.blocks if block.party == party]
                # The most choices of any schedule: the schedule depends on the window.
                most, prediction = learning.iterations * len(own), self.settings.bounds.prediction
                plan = plan_fit(
                    self.estimator_cost(party),
                    most,
                    self.quota(party),
                    prediction,
                    sketch,
                    learning.choice_share,
                )
                total += plan.variation(sketch, max(own))
            else:
                total += self.selection_plan(party).variation(rows, columns[party])
            if learning.intercept:
                total += self.means_plan(party).variation
        # What predictions did not use of a budget pays for more fits than window.fits.
        return self.settings.window.fits / (1 - self._serving_share) * total + self._serving_variation

    @property
    def _serving_variation(self) -> float:
        count = self.settings.serving.predictions
        return count * sum(partial_variation(self.prediction_cost(party)) for party in self.parties)
