"""Settings of the two roles of differentially private Frank-Wolfe."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from streamfl.configuration.asked_for import AskedFor
from streamfl.configuration.settings import ReadBy, Section
from streamfl.configuration.shared import SHARED
from streamfl.dp_frank_wolfe.learning.blocks import SamplingName
from streamfl.records.entities import VerticalMembers, VerticalSettings
from streamfl.records.header_propagation import FollowedAcross
from streamfl.state.changeable import CHANGEABLE

__all__ = ["MOST_COLUMNS", "MOST_ROWS", "PARTY", "SERVER", "DPFrankWolfeSettings"]

PARTY, SERVER = "dp-frank-wolfe-party", "dp-frank-wolfe-server"
# A frozen window and the sketches of a fit are held in memory: rows times columns at a party, sketches times
# columns at the server.
MOST_ROWS = 1_000_000
MOST_COLUMNS = 100_000
MOST_NUMBERS = 2**28
# MOST_WEIGHTS: a party's model is published in one record. MOST_SOLVED: columns that the server can solve for
# at once.
MOST_WEIGHTS, MOST_SOLVED = 20_000, 4_096

Amount = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
Centre = Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)]


class ColumnFederation(VerticalMembers):
    """Who learns together. Every member has to be given the same values."""

    columns: dict[str, Annotated[int, Field(ge=1, le=MOST_COLUMNS)]]
    """How many columns each party has, by its name."""

    @model_validator(mode="after")
    def _every_party_has_columns(self) -> ColumnFederation:
        if set(self.columns) != set(self.parties):
            raise ValueError(f"columns: a number for each of federation.parties = {self.parties} is expected")
        return self


class RowWindowSection(Section):
    """Which rows a fit uses. rows and fits are the same at every member."""

    rows: Annotated[int, SHARED] = Field(ge=2, le=MOST_ROWS)
    """n: entities of a fit. A fit begins once every party knows them. A row that is missing or cannot be read
    counts as zeros."""
    fits: Annotated[int, SHARED] = Field(default=1, ge=1, le=1_000_000)
    """Number of fits that an entity may take part in over its life. The budget is divided by this. What
    predictions leave of serving.share may pay for more."""
    limit: Annotated[int, CHANGEABLE] = Field(default=1_000_000, ge=2, le=10_000_000)
    """Most entities that wait for a fit. Beyond it, new ones are refused. The server's has to be as large as
    any party's: entities that parties announce beyond it come into no window."""
    patience_seconds: Annotated[float, CHANGEABLE] = Field(default=600.0, gt=0, le=1e6, allow_inf_nan=False)
    """Seconds that the server waits for a party's answer before it goes on without that party."""


class DataBoundsSection(Section):
    """Bounds that scale values. They come from public knowledge, never from the data. Values beyond a bound
    are clipped to it."""

    centre: Annotated[Centre | list[Centre], AskedFor(PARTY)] = 0.0
    """Subtracted from this party's columns: one number, or one for each column."""
    bound: Annotated[Amount | list[Amount], AskedFor(PARTY)] = 1.0
    """Scale of this party's columns: (value - centre) / bound lies within -1 and 1."""
    label_centre: Annotated[Centre, AskedFor(), SHARED] = 0.0
    """Subtracted from the label. The same at every member."""
    label_bound: Annotated[Amount, AskedFor(), SHARED] = 1.0
    """Scale of the label. The same at every member."""
    prediction: Annotated[float, SHARED] = Field(default=1.0, gt=0, le=500, allow_inf_nan=False)
    """R: within a fit, predictions are clipped to label_centre ± R label_bound. The same at every member."""


class BudgetSection(Section):
    """Limits what anybody who sees all messages may learn about one entity, over all parties and its whole
    life.

    epsilon, delta, shares and insecure_test_noise are the same at every member.
    """

    epsilon: Annotated[float, SHARED] = Field(gt=0)
    """Privacy budget of one entity: its row at all parties, with its label, may be any other. `inf`: no
    noise, no promise."""
    delta: Annotated[float, SHARED] = Field(gt=0, lt=1)
    """Probability that the promise fails. Below 1 / window.rows."""
    shares: Annotated[dict[str, Annotated[float, Field(gt=0, le=1)]] | None, SHARED] = None
    """Each party's share of the budget, by name. The sum is at most 1. Left out: equal shares."""
    insecure_test_noise: Annotated[bool, SHARED] = False
    """For tests. `true`: noise comes from federation.seed, which others know, so that a run can be repeated.
    No promise holds."""
    # The file may be moved to another place. Its content is compared.
    secret_file: Annotated[str | None, CHANGEABLE, AskedFor(PARTY)] = None
    """Party only: a file with at least 32 bytes that nobody else knows. Noise is drawn from them."""
    ledger: Annotated[str | None, AskedFor(PARTY)] = Field(
        default=None, pattern=r"^[A-Za-z0-9_-]+$", max_length=64
    )
    """Party only: the name of the ledger of its source data. Use the same name in every federation that
    learns from them."""
    # The file may be moved to another place. Its content is compared.
    ledger_file: Annotated[str | None, CHANGEABLE, AskedFor(PARTY)] = None
    """Party only: the file that `streamfl ledger init` makes. The party notes each release there before it
    sends it."""
    ledger_limit: Annotated[int, CHANGEABLE] = Field(default=1_000_000, ge=1, le=100_000_000)
    """Party only: most entities that the ledger has room for. The party releases nothing about further
    entities."""

    @property
    def is_private(self) -> bool:
        """Whether a privacy promise holds."""
        return math.isfinite(self.epsilon) and not self.insecure_test_noise


class SparseLearningSection(Section):
    """What is learnt and how. Every member has to be given the same values."""

    estimator: Literal["frank-wolfe", "marginal", "two-round"] = "marginal"
    """The algorithm. `marginal`: columns are chosen once, and fitted as if they were independent.
    `two-round`: chosen once, and a second round measures their correlations. `frank-wolfe`: the paper's."""
    radius: float = Field(default=1.0, gt=0, le=1e6, allow_inf_nan=False)
    """Bound on the sum of the weights' absolute values, with features and labels scaled by their bounds."""
    radii: dict[str, Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]] | None = None
    """Radius of each party, by name. The sum is radius. Left out: equal radii."""
    columns: int = Field(default=10, ge=1, le=MOST_WEIGHTS)
    """N: most columns with a weight, over all parties. Each party has an equal part, rounded down, and at
    least one."""
    iterations: int = Field(default=20, ge=1, le=100_000)
    """T: iterations of a fit by `frank-wolfe`."""
    intercept: bool = True
    """Whether the model has an intercept. `true`: columns and label are centred by means that are released
    with noise, for a twentieth of a fit's budget. `false`: the paper's model, for columns whose centre is
    their mean by public knowledge."""
    sampling: SamplingName = "full"
    """Which blocks take part in an iteration: `full`, `uniform` (one), `nice` (sampled_blocks of all),
    `distributed` (sampled_blocks of each party) or `importance` (one, by probabilities)."""
    blocks: int = Field(default=1, ge=1, le=1000)
    """Number of blocks that each party's columns are divided into. Each block has a ball of its own."""
    sampled_blocks: int = Field(default=1, ge=1, le=64_000)
    """Blocks drawn in an iteration, for `nice` and `distributed`."""
    probabilities: list[Annotated[float, Field(gt=0, le=1)]] | None = None
    """For `importance`: the probability of each block, in the order of parties, from public knowledge."""
    candidates: int | None = Field(default=None, ge=1, le=MOST_COLUMNS)
    """Number of columns of a block that are tried in an iteration. Left out: all."""
    sketch: Literal["signs", "identity"] = "signs"
    """What a party shows of a column. `signs`: sketch_rows sums with random signs. `identity`: every row."""
    sketch_rows: int = Field(default=256, ge=1, le=MOST_ROWS)
    """m: numbers of a column's sketch, for `signs`."""
    choice_share: float = Field(default=0.5, gt=0, lt=1)
    """Share of a fit's budget for choices. The rest is for what parties show of columns."""
    tolerance: float = Field(default=0.0, ge=0, le=1e6, allow_inf_nan=False)
    """With `epsilon = inf`: a fit ends once the duality gap is at most this."""


class ServingSection(Section):
    """Whether entities are predicted between fits. Every member has to be given the same values."""

    mode: Literal["off", "exact", "private"] = "off"
    """How parties send their parts of predictions. `exact`: without noise, which epsilon does not cover: a
    few of them show the columns. No federation that keeps to noise can use the ledger afterwards. `private`:
    with noise, from the entity's budget."""
    share: float = Field(default=0.2, gt=0, lt=1)
    """Share of the budget for predictions, with `private`."""
    predictions: int = Field(default=1, ge=1, le=1_000_000)
    """Predictions that an entity may get in its life, with `private`. Its share of the budget is divided by
    this. Each record of the entity at a party counts as one, also one that comes again."""


class DPFrankWolfeSettings(VerticalSettings):
    """Settings of party and server."""

    read_by: ClassVar[ReadBy] = dict.fromkeys(("party", "samples", "labels"), (PARTY,))
    names_are_keys: ClassVar[bool] = True

    federation: ColumnFederation
    window: RowWindowSection
    bounds: DataBoundsSection = Field(default_factory=DataBoundsSection)
    privacy: BudgetSection
    learning: Annotated[SparseLearningSection, SHARED] = Field(default_factory=SparseLearningSection)
    serving: Annotated[ServingSection, SHARED] = Field(default_factory=ServingSection)
    predictions: FollowedAcross = Field(default_factory=FollowedAcross)

    @property
    def sketch_numbers(self) -> int:
        """Numbers of a column's sketch."""
        return self.window.rows if self.learning.sketch == "identity" else self.learning.sketch_rows

    @property
    def own_columns(self) -> int:
        """How many columns this party has."""
        return self.federation.columns[self.required_party()]

    @property
    def ledger_name(self) -> str:
        """The name of this party's ledger."""
        return self.privacy.ledger or self.member

    @property
    def message_bytes(self) -> int:
        """Bytes of the longest content of any message."""
        names = 300 * self.window.rows
        rows = 8 * self.window.rows * max(self.learning.columns, len(self.federation.parties))
        shown = 8 * self.sketch_numbers * (self.learning.blocks + 1) + 16 * max(
            self.federation.columns.values()
        )
        products = 8 * (self.learning.columns + len(self.federation.parties)) ** 2 * 2
        return max(names, rows if self.learning.estimator == "two-round" else 0, shown, products) + 65_536

    def unfit(self) -> Iterator[str]:
        yield from super().unfit()
        yield from self.without_meaning()
        kind, privacy = self.role.kind, self.privacy
        if kind == PARTY and not self.bus.url.startswith("memory:"):
            needed = ["ledger", "ledger_file", *([] if privacy.insecure_test_noise else ["secret_file"])]
            for key in needed:
                if getattr(privacy, key) is None:
                    yield f"privacy.{key} is missing: a {kind} needs it"
        if self.bus.processing_guarantee != "exactly_once":
            yield (
                f'bus.processing_guarantee = "{self.bus.processing_guarantee}": "exactly_once" is expected: '
                "what a release costs is remembered with the release"
            )

    @model_validator(mode="after")
    def _promises_what_can_be_kept(self) -> DPFrankWolfeSettings:
        privacy, rows, parties = self.privacy, self.window.rows, self.federation.parties
        if privacy.delta >= 1 / rows:
            raise ValueError(
                f"privacy.delta = {privacy.delta:g}: less than 1 / window.rows = {1 / rows:g} is expected, "
                "otherwise a whole row could be revealed"
            )
        if privacy.shares is not None and (
            set(privacy.shares) != set(parties) or math.fsum(privacy.shares.values()) > 1
        ):
            raise ValueError(f"privacy.shares: one for each of {parties} is expected, of sum 1 at most")
        for section, given in (("samples", self.samples), ("labels", self.labels)):
            if privacy.is_private and given is not None and given.entity is not None:
                raise ValueError(
                    f"{section}.entity = {given.entity!r}: leave it out, and write records under the "
                    "entity's name as their key. A name among the values is lost if they cannot be read, so "
                    "the values would decide which entities are announced"
                )
        if self.window.limit < rows:
            raise ValueError(f"window.limit = {self.window.limit}: at least window.rows = {rows} is expected")
        return self

    @model_validator(mode="after")
    def _can_be_learnt(self) -> DPFrankWolfeSettings:
        learning, federation = self.learning, self.federation
        parties, count = federation.parties, len(federation.parties)
        if learning.radii is not None:
            total = math.fsum(learning.radii.values())
            if set(learning.radii) != set(parties) or abs(total - learning.radius) > 1e-9 * learning.radius:
                raise ValueError(
                    f"learning.radii: one for each of {parties} is expected, of sum {learning.radius:g}"
                )
        if learning.blocks > min(federation.columns.values()):
            raise ValueError(
                f"learning.blocks = {learning.blocks}: no more than a party has columns are expected"
            )
        most = {"nice": learning.blocks * count, "distributed": learning.blocks}.get(learning.sampling)
        if most is not None and learning.sampled_blocks > most:
            raise ValueError(
                f"learning.sampled_blocks = {learning.sampled_blocks}: at most {most} are expected"
            )
        if learning.sampling == "importance":
            given = learning.probabilities or []
            if len(given) != learning.blocks * count or abs(math.fsum(given) - 1) > 1e-9:
                raise ValueError(
                    f"learning.probabilities: {learning.blocks * count} of sum 1 are expected, one for each "
                    "block"
                )
        if learning.tolerance > 0 and math.isfinite(self.privacy.epsilon):
            raise ValueError(
                "learning.tolerance needs privacy.epsilon = inf: the gap is computed from the data without "
                "noise, so a fit may not end by it"
            )
        if self.window.rows * max(federation.columns.values()) > 2 * MOST_NUMBERS:
            raise ValueError(
                f"window.rows = {self.window.rows}: with this number of columns, more than a member can hold "
                "in memory"
            )
        if self.sketch_numbers * learning.columns > MOST_NUMBERS:
            raise ValueError(
                f"learning.columns = {learning.columns}: with such sketches, more than a server can hold in "
                "memory"
            )
        if learning.estimator != "frank-wolfe" and learning.columns > MOST_SOLVED:
            raise ValueError(
                f"learning.columns = {learning.columns}: {learning.estimator} can solve for {MOST_SOLVED} at "
                "most"
            )
        if (
            learning.estimator == "two-round"
            and self.window.rows * max(learning.columns, count) > MOST_NUMBERS
        ):
            raise ValueError(
                f"learning.columns = {learning.columns}: with this number of rows, more than a server can "
                "hold in memory"
            )
        own = None if self.party is None else federation.columns.get(self.party.name)
        for key in ("centre", "bound"):
            given_bounds = getattr(self.bounds, key)
            if isinstance(given_bounds, list) and own is not None and len(given_bounds) != own:
                raise ValueError(f"bounds.{key}: one number, or one for each of {own} columns is expected")
        return self
