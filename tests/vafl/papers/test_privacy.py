"""What VAFL's parties promise, against what can be measured: two neighbouring runs, and another
accountant."""

from __future__ import annotations

import doctest
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import kstest
from vafl.makers import Steps, make_party

from streamfl.contract.role import BadRecord, Received, Record, Send, StateChange
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.privacy.accountant import epsilon_of
from streamfl.privacy.keyed_noise import ROUNDING
from streamfl.records.entities import EntityLabelsSection
from streamfl.records.samples import Sample
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.functions.networks import DenseNetwork
from streamfl.vafl.messages import EMBEDDING, REPLY, Embedding, Reply
from streamfl.vafl.privacy import BoundedOutput, Mechanism
from streamfl.vafl.privacy_section import PrivacySection
from streamfl.vafl.roles import ROLES

SECRET = "5e" * 32
INPUTS, SIZE = 6, 4


class Watched:
    """A function that writes down what it gave: the embeddings without noise, and each step's inputs and
    clipped sum."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.size, self.dtype, self.noise_units = inner.size, inner.dtype, inner.noise_units
        self.embeddings: list[NDArray[Any]] = []
        self.stepped_on: list[NDArray[Any]] = []
        self.sums: list[NDArray[Any]] = []

    def initial(self, *path: Any) -> NDArray[Any]:
        return np.asarray(self.inner.initial(*path))

    def forward(
        self, parameters: NDArray[Any], inputs: NDArray[Any], noise: NDArray[Any] | None = None
    ) -> Any:
        done = self.inner.forward(parameters, inputs, noise)
        self._inputs = inputs
        self.embeddings += list(done.outputs)
        return done

    def backward(self, parameters: NDArray[Any], done: Any, cotangents: NDArray[Any]) -> NDArray[Any]:
        return self._step(self.inner.backward(parameters, done, cotangents), len(cotangents))

    def backward_each(
        self, parameters: NDArray[Any], done: Any, cotangents: NDArray[Any], norm: float
    ) -> NDArray[Any]:
        return self._step(self.inner.backward_each(parameters, done, cotangents, norm), len(cotangents))

    def _step(self, total: NDArray[Any], count: int) -> NDArray[Any]:
        # The last forward pass was of a step: its outputs go nowhere.
        del self.embeddings[-count:]
        self.stepped_on.append(self._inputs.copy())
        self.sums.append(total.astype(np.float64))
        return total


class Party:
    """A party of one partition."""

    def __init__(
        self, function: Any, mechanism: Mechanism | None, steps: Steps, epoch: float = 0.0, **options: Any
    ) -> None:
        self.function = Watched(function)
        self.now = epoch
        self.role = make_party(
            name="a",
            function=self.function,
            inputs=INPUTS,
            embedding_size=SIZE,
            steps=steps,
            seed=1,
            mechanism=mechanism,
            **options,
        )
        for partition in range(3):
            self.role.open(partition)
        self.sent: list[Embedding] = []

    def sees(self, entity: str, features: NDArray[Any], partition: int = 0) -> None:
        self._takes("samples", Sample(entity, "s", tuple(features.tolist()), None), entity, partition)

    def answered(self, embedding: Embedding, gradient: NDArray[Any] | None, partition: int = 0) -> None:
        content = b"" if gradient is None else encode_array(gradient.astype(self.function.dtype))
        reply = Reply(VERSION, 0, embedding.entity, embedding.epoch, embedding.sequence, content)
        self._takes("gradients", reply, embedding.entity, partition)

    def _takes(self, channel: str, message: Any, entity: str, partition: int) -> None:
        for reply in self.role.receive(
            [Received(channel, message, Record(channel, partition, 0, entity.encode(), b""))], self.now
        ):
            assert isinstance(reply, Send), reply
            self.sent.append(EMBEDDING.decode(reply.value))

    def figure(self, name: str) -> float:
        return sum(one.value for one in self.role.measure() if one.name == name)

    @property
    def noise(self) -> NDArray[np.float64]:
        """Of everything sent, (embeddings, SIZE)."""
        values = np.array([np.frombuffer(one.values, self.function.dtype) for one in self.sent], float)
        return values - np.array(self.function.embeddings)

    @property
    def parameters(self) -> NDArray[Any]:
        return self.role.parameters(0)


def function(kind: str, normalise: bool = True, norm: float = 1.0, dtype: Any = np.float64) -> BoundedOutput:
    sizes = [INPUTS, SIZE] if kind == "linear" else [INPUTS, 8, SIZE]
    return BoundedOutput(DenseNetwork(sizes, "tanh", dtype=dtype, bias=kind != "linear"), norm, normalise)


# ---- mu against another accountant


@pytest.mark.parametrize(("embeddings", "steps"), [(1, 0), (3, 0), (2, 2), (5, 3), (40, 40)])
def test_releases_compose_as_google_s_accountant_says(embeddings: int, steps: int) -> None:
    """Protects the sum over releases: k embeddings and j steps, against dp-accounting's composition of the
    single mechanisms."""
    mechanism = Mechanism(1.5, 6.0, 0.7, 8.0, None, SECRET)
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    # By its definition a noise multiplier is of a sensitivity of 1: here it is 2C, and 2S.
    accountant.compose(dp_accounting.GaussianDpEvent(6.0 / (2 * 1.5)), embeddings)
    if steps:
        accountant.compose(dp_accounting.GaussianDpEvent(8.0 / 2), steps)
    assert epsilon_of(math.sqrt(mechanism.cost(embeddings, steps)), 1e-5) == pytest.approx(
        accountant.get_epsilon(1e-5), rel=2e-3
    )


def test_the_documents_tables_are_what_is_computed() -> None:
    """Protects whoever chooses a budget by docs/vertical-privacy.md: its tables are the results of the calls
    below them."""
    path = Path(__file__).parents[3] / "docs" / "vertical-privacy.md"
    outcome = doctest.testfile(str(path), module_relative=False)
    assert outcome.attempted >= 4
    assert outcome.failed == 0
    rows = [
        [cell.strip() for cell in line.split("|")[2:-1]]
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    (at,) = (index for index, row in enumerate(rows) if row[:1] == ["0.25"])
    epsilons = [f"{epsilon_of(float(mu), 1e-5):.2f}" for mu in rows[at]]
    assert rows[at + 2] == epsilons


# ---- neighbouring runs

Event = tuple[str, bool]


def events(generator: np.random.Generator, seen: int, others: int) -> list[Event]:
    """Names in the order of their samples, "target" among them so many times; and whether a gradient comes
    for it at once."""
    names = ["target"] * seen + [f"e{number}" for number in range(others)]
    return [(str(name), bool(generator.random() < 0.9)) for name in generator.permutation(names)]


def neighbours(
    parties: Sequence[Party], order: Sequence[Event], records: Sequence[NDArray[Any]], same_sums: bool
) -> tuple[float, float]:
    """Two runs on the same samples, but ``records`` for the target, with the same replies: (what embeddings,
    what steps tell)^2.

    same_sums: condition on the steps' noisy sums being the same, and count what the sums themselves tell.
    """
    generator = np.random.default_rng(8)
    others: dict[str, NDArray[Any]] = {}
    for name, answer in order:
        others.setdefault(name, generator.normal(size=INPUTS))
        gradient = generator.normal(size=SIZE)
        for party, record in zip(parties, records, strict=True):
            party.sees(name, record if name == "target" else others[name])
        if answer:
            for party in parties:
                party.answered(party.sent[-1], gradient)
        if same_sums:
            first, second = parties
            for change in first.role.changed_state():
                if change.key.startswith(b"array/"):
                    second.role.restore(change)
    first, second = parties
    assert (
        [one.entity for one in first.sent]
        == [one.entity for one in second.sent]
        == [name for name, _ in order]
    )
    mechanism = first.role.mechanism
    assert mechanism is not None
    shifts = np.array(first.function.embeddings, float) - np.array(second.function.embeddings)
    told = np.square(shifts).sum() / mechanism.embedding_noise**2
    if not same_sums:
        return float(told), 0.0
    assert mechanism.gradient_noise is not None
    assert mechanism.gradient_norm is not None
    sums = np.array(first.function.sums) - np.array(second.function.sums)
    return float(told), float(
        np.square(sums).sum() / (mechanism.gradient_noise * mechanism.gradient_norm) ** 2
    )


@pytest.mark.parametrize("optimiser", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("kind", ["linear", "network"])
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_no_record_costs_more_than_is_claimed(optimiser: Any, kind: str, batch: int) -> None:
    """Protects the guarantee: one record replaced by its opposite, the privacy loss of everything that
    depends on it added up.

    Given the noisy sums so far, the parameters are the same in both runs, so others' embeddings tell nothing
    more; what the sums tell is counted. In batches of 16 the record is there several times.
    """
    mechanism = Mechanism(1.0, 4.0, 0.01, 4.0, None, SECRET)
    record = np.random.default_rng(3).normal(size=INPUTS)
    order = events(np.random.default_rng(5), 8, 60)
    parties = [Party(function(kind), mechanism, Steps(optimiser, 0.05, batch)) for _ in range(2)]
    embeddings, steps = neighbours(parties, order, (record, -record), same_sums=True)
    claimed = parties[0].figure("privacy_mu")
    assert parties[1].figure("privacy_mu") == claimed
    assert steps > 0
    assert np.sqrt(embeddings + steps) <= claimed


def test_a_record_can_cost_what_is_claimed() -> None:
    """Protects the test above from being too easy: alone in every batch, twice in each, a record costs all
    that is counted."""
    mechanism = Mechanism(1.0, 4.0, 0.01, 4.0, None, SECRET)
    record = np.random.default_rng(3).normal(size=INPUTS)
    parties = [Party(function("linear"), mechanism, Steps("sgd", 0.05, 2)) for _ in range(2)]
    # Gradients of one direction only: two of the same record add up.
    for party, own in zip(parties, (record, -record), strict=True):
        for _ in range(2):
            party.sees("target", own)
            party.answered(party.sent[-1], np.array([1.0, -1.0, 2.0, 0.5]))
    one, other = (party.function for party in parties)
    embeddings = np.square(np.array(one.embeddings) - np.array(other.embeddings)).sum() / 16
    steps = np.square(one.sums[0] - other.sums[0]).sum() / 0.04**2
    assert steps == pytest.approx(4 * (2 / 4.0) ** 2, rel=1e-4)
    claimed = parties[0].figure("privacy_mu")
    assert 0.999 * claimed <= np.sqrt(embeddings + steps) <= claimed


def test_without_noise_on_steps_others_embeddings_tell_more_than_the_records_own() -> None:
    """Protects users from the number per release, and the tests above from proving nothing: with AdaGrad and
    no noise on steps one record shifts others' embeddings by more than its own claim allows; the guarantee,
    with noise, is not passed.
    """
    record = np.random.default_rng(3).normal(size=INPUTS)
    order = [("target", True), *((f"e{number}", True) for number in range(1500))]
    bare = Mechanism(1.0, 4.0, None, None, None, SECRET)
    parties = [Party(function("linear"), bare, Steps("adagrad", 0.03, 16)) for _ in range(2)]
    told, _ = neighbours(parties, order, (record, -record), same_sums=False)
    claimed = parties[0].figure("privacy_mu_per_release")
    assert parties[0].figure("privacy_mu") == 0
    print(f"AdaGrad without noise on steps: per release {claimed:g}, realised {np.sqrt(told):.3f}")
    assert np.sqrt(told) > 1.2 * claimed

    private = Mechanism(1.0, 4.0, 1.0, 4.0, None, SECRET)
    parties = [Party(function("linear"), private, Steps("adagrad", 0.03, 16)) for _ in range(2)]
    embeddings, steps = neighbours(parties, order, (record, -record), same_sums=True)
    assert np.sqrt(embeddings + steps) <= parties[0].figure("privacy_mu")


@pytest.mark.parametrize("rate", [0.1, 10.0, 1e4])
def test_what_embeddings_alone_tell_is_below_the_claim(rate: float) -> None:
    """Protects the reasoning: steps are never sent, so here nothing is assumed about them. With linear
    embeddings and SGD all that is sent is one Gaussian vector, whose mean and covariance are known; the exact
    mu between neighbours is below the claim."""
    norm, noise = 0.5, 2.0
    record = np.random.default_rng(3).normal(size=INPUTS)
    order = events(np.random.default_rng(6), 3, 200)
    # Steps without noise but for 1e-30, and no embedding long enough to be shortened: means.
    means = Mechanism(1e12, 4.0, norm, 1e-30, None, SECRET)
    steps = Steps("sgd", rate, 4)
    parties = [Party(function("linear", normalise=False, norm=1e12), means, steps) for _ in range(2)]
    neighbours(parties, order, (record, -record), same_sums=False)
    first, second = parties
    shift = np.array(first.function.embeddings) - np.array(second.function.embeddings)
    # Noise of step s is in every embedding that came after it, times its features.
    generator, features, seen = np.random.default_rng(8), [], {}
    for name, _ in order:
        seen.setdefault(name, generator.normal(size=INPUTS))
        generator.normal(size=SIZE)
        features.append(record if name == "target" else seen[name])
    versions = np.array([one.parameters_version for one in first.sent])
    table = np.array(features)
    per_step = (rate * noise * norm / 4) ** 2
    covariance = 16.0 * np.eye(len(order)) + per_step * np.minimum.outer(versions, versions) * (
        table @ table.T
    )
    own = np.array([name == "target" for name, _ in order])
    # What the record's own embeddings tell is claimed with C = the longest of them; here only what others'
    # tell is of interest.
    others = ~own
    exact = np.sqrt(
        (shift[others] * np.linalg.solve(covariance[np.ix_(others, others)], shift[others])).sum()
    )
    real = Mechanism(1.0, 4.0, norm, noise, None, SECRET)
    taken = round(first.role.spent(0, "target") / means.cost(0, 1))
    claimed = math.sqrt(real.cost(0, taken))
    print(f"rate {rate:g}: exact {exact:.4f} of {claimed:.4f}")
    assert 0 < exact <= claimed


# ---- noise


def residuals() -> NDArray[np.float64]:
    """Noise of 200 embeddings by secret and partition, (2, 3, 200, SIZE): the same entities and features
    everywhere."""
    drawn = []
    for secret in (SECRET, SECRET[::-1]):
        for partition in range(3):
            party = Party(function("linear"), Mechanism(1.0, 4.0, None, None, None, secret), Steps())
            for number in range(200):
                party.sees(f"e{number}", np.arange(INPUTS) + 1.0, partition)
            drawn.append(party.noise)
    return np.reshape(drawn, (2, 3, 200, SIZE))


def test_noise_of_embeddings_is_normal_and_of_its_own_everywhere() -> None:
    """Protects the mechanism: standard deviation c, the normal distribution, and no dependence on other noise
    of any kind."""
    noise = residuals()
    assert noise.std() == pytest.approx(4.0, rel=5 / np.sqrt(2 * noise.size))
    assert kstest(noise.ravel() / 4.0, "norm").pvalue > 1e-4
    # On a grid two numbers among thousands may be equal, but not all four of an embedding.
    assert len(np.unique(noise.reshape(-1, SIZE), axis=0)) == noise.size // SIZE
    unit = noise / 4.0
    pairs = {
        "secrets": (unit[0], unit[1]),
        "partitions": (unit[:, 0], unit[:, 1]),
        "other partitions": (unit[:, 1], unit[:, 2]),
        "sequences": (unit[:, :, :-1], unit[:, :, 1:]),
        "numbers": (unit[..., 0], unit[..., 1]),
    }
    for name, (left, right) in pairs.items():
        assert abs((left * right).mean()) < 5 / np.sqrt(left.size), name


def test_noise_of_steps_is_sigma_s_on_the_sum() -> None:
    """Protects the mechanism: a step on gradients of 0 is noise alone, of standard deviation sigma S / batch
    a parameter."""
    network = DenseNetwork([INPUTS, 400, SIZE], "tanh", dtype=np.float64)
    party = Party(
        BoundedOutput(network, 1.0, True), Mechanism(1.0, 4.0, 0.5, 6.0, None, SECRET), Steps("sgd", 1.0, 2)
    )
    moves = []
    for _ in range(3):
        before = party.parameters
        for entity in "ab":
            party.sees(entity, np.ones(INPUTS))
            party.answered(party.sent[-1], np.zeros(SIZE))
        moves.append((party.parameters - before) * 2 / (0.5 * 6.0))
    assert np.std(moves) == pytest.approx(1.0, rel=5 / np.sqrt(2 * np.size(moves)))
    assert kstest(np.ravel(moves), "norm").pvalue > 1e-4
    for left, right in ((0, 1), (1, 2)):
        assert abs((moves[left] * moves[right]).mean()) < 5 / np.sqrt(len(moves[0]))


def test_a_step_that_is_done_again_never_puts_the_same_noise_onto_something_else() -> None:
    """Protects from differences without noise: after a refused commit, samples and replies may come in
    another order, and whoever read what was not committed would subtract. The same content gives the same
    bytes, and tells nothing new.
    """
    mechanism = Mechanism(1.0, 4.0, 1.0, 4.0, None, SECRET)
    records = {name: np.random.default_rng(number).normal(size=INPUTS) for number, name in enumerate("abcd")}

    def run(
        samples: str, gradients: Sequence[float], epoch: float = 0.0, rate: float = 0.1, weight: float = 0.0
    ) -> Party:
        party = Party(function("linear"), mechanism, Steps("sgd", rate, 1, regularisation=weight), epoch)
        party.sees("d", records["d"])
        for gradient in gradients:
            party.answered(party.sent[-1], np.full(SIZE, gradient))
            party.sees("d", records["d"])
        for name in samples:
            party.sees(name, records[name])
        return party

    once = run("ab", [1.0])
    # The first commit of a partition is done again in an epoch of its own.
    again = run("ab", [1.0], epoch=7.0)
    assert [one.values for one in once.sent] == [one.values for one in again.sent]
    # By other settings, restarted in between: the step leads elsewhere.
    for other in (run("ab", [1.0], rate=0.05), run("ab", [1.0], weight=0.5)):
        assert not np.isclose(other.noise[1:], once.noise[1:]).any()
    order = run("ba", [1.0])
    assert [one.sequence for one in order.sent] == [one.sequence for one in once.sent]
    np.testing.assert_array_equal(order.noise[:2], once.noise[:2])
    assert not np.isclose(order.noise[2:], once.noise[2:]).any()
    # Another gradient before: embeddings of the same entities with the same numbers, by other parameters.
    learnt = run("ab", [2.0])
    assert not np.isclose(learnt.noise[1:], once.noise[1:]).any()
    moved = [party.parameters + 0.1 * party.function.sums[0] for party in (once, learnt)]
    assert not np.isclose(*moved).any()


@pytest.mark.parametrize("change", ["norm", "normalise", "hidden_noise", "precision"])
def test_noise_is_another_one_when_what_it_hides_was_made_otherwise(change: str) -> None:
    """Protects from work that is done again after a setting was changed, though not the noise's own strength:
    one noise on two embeddings would give their difference.
    """

    def shown(changed: bool) -> NDArray[np.float64]:
        changes = {change} if changed else set()
        norm = 2.0 if "norm" in changes else 1.0
        dtype: Any = np.float32 if "precision" in changes else np.float64
        hidden = 0.3 if "hidden_noise" in changes else 0.1
        network = DenseNetwork([INPUTS, 8, SIZE], "tanh", dtype=dtype, perturbation=hidden)
        bounded = BoundedOutput(network, norm, normalise="normalise" not in changes)
        # The federation's fingerprint has its precision in it.
        fingerprint = int("precision" in changes)
        party = Party(
            bounded,
            Mechanism(norm, 4.0, 1.0, 4.0, None, SECRET),
            Steps("sgd", 0.1, 1),
            fingerprint=fingerprint,
        )
        for number in range(20):
            party.sees(f"e{number}", np.random.default_rng(number).normal(size=INPUTS) / 9)
        return party.noise

    assert np.abs(shown(True) - shown(False)).min() > 1e-4


def test_what_is_shown_again_in_other_batches_is_the_same_to_the_last_bit() -> None:
    """Protects what is done again after a refused commit: rows of a matrix product may round otherwise among
    others than alone, and the same noise on two roundings of one embedding would tell where it lies between
    two steps of the grid.
    """
    network = DenseNetwork([60, 40, SIZE], "tanh")
    records = np.random.default_rng(4).normal(size=(64, 60))
    alone = network.forward(network.initial(1, "a"), records.astype(np.float32)[:1]).outputs[0]
    among = network.forward(network.initial(1, "a"), records.astype(np.float32)).outputs[0]
    print(f"a row alone and among 64: {np.abs(alone - among).max():.1e} apart")

    def shown(size: int) -> list[bytes]:
        mechanism = Mechanism(1.0, 4.0, None, None, None, SECRET)
        role = make_party(
            name="a",
            function=BoundedOutput(network, 1.0, True),
            inputs=60,
            embedding_size=SIZE,
            steps=Steps(),
            seed=1,
            mechanism=mechanism,
        )
        role.open(0)
        samples = [
            Received(
                "samples",
                Sample(f"e{number}", "s", tuple(row.tolist()), None),
                Record("samples", 0, 0, b"", b""),
            )
            for number, row in enumerate(records)
        ]
        batches = [samples[begin : begin + size] for begin in range(0, len(samples), size)]
        sends = [one for batch in batches for one in role.receive(batch, 0.0)]
        return [EMBEDDING.decode(one.value).values for one in sends if isinstance(one, Send)]

    assert shown(1) == shown(64) == shown(7)


@pytest.mark.parametrize("count", [16, 10_000])
def test_the_sum_of_many_records_is_rounded_by_far_less_than_one_of_them_weighs(count: int) -> None:
    """Protects the sensitivity of a large batch in single precision: what the sum of all records is rounded
    by differs from one record to another, and has to be far less than one record may weigh. The sum by hand,
    in double precision.
    """
    generator = np.random.default_rng(2)
    network = DenseNetwork([INPUTS, SIZE], bias=False)
    inputs = (1 + 0.1 * generator.normal(size=(count, INPUTS))).astype(np.float32)
    cotangents = (1 + 0.1 * generator.normal(size=(count, SIZE))).astype(np.float32)
    norm, parameters = 0.01, network.initial(0)
    total = network.backward_each(parameters, network.forward(parameters, inputs), cotangents, norm)
    each = np.einsum("ni,nj->nij", inputs.astype(float), cotangents.astype(float)).reshape(count, -1)
    expected = (each * np.minimum(1, norm / np.linalg.norm(each, axis=1, keepdims=True))).sum(axis=0)
    apart = float(np.linalg.norm(total - expected)) / norm
    print(f"sum of {count} records: off by {apart:.1e} of what one may weigh")
    assert apart <= ROUNDING / 4


# ---- settings that change between two lives


def restarted(party: Party, mechanism: Mechanism | None, rate: float = 0.1, batch: int = 1) -> Party:
    """Another process on the state that ``party`` left, with other noise."""
    successor = Party(party.function.inner, mechanism, Steps("sgd", rate, batch))
    for change in party.role.changed_state():
        successor.role.restore(change)
    return successor


def test_what_was_released_with_less_noise_keeps_its_price() -> None:
    """Protects the budget from restarts: after little noise, more of it makes later releases cheaper, not
    earlier ones."""
    records = np.ones(INPUTS)
    before = Party(function("linear"), Mechanism(1.0, 1.0, 1.0, 1.0, 4.0, SECRET), Steps("sgd"))
    for _ in range(3):
        before.sees("e", records)
    after = restarted(before, Mechanism(1.0, 10.0, 1.0, 1.0, 4.0, SECRET))
    assert after.figure("privacy_mu") == pytest.approx(math.sqrt(3 * 2.0**2))
    for _ in range(200):
        after.sees("e", records)
    # 12 are spent, of 16; each further one costs .04.
    assert len(after.sent) == 100
    assert after.figure("privacy_mu") == pytest.approx(4.0)


@pytest.mark.parametrize("learns", [False, True])
def test_no_mu_is_claimed_after_a_life_without_noise(learns: bool) -> None:
    """Protects from a number that leaves out what was told before: embeddings without noise, or steps
    without, which a guarantee would have to cover.
    """
    own = Mechanism(1.0, 4.0, None, None, None, SECRET)
    before = Party(function("linear"), own if learns else None, Steps("sgd", 0.1, 1))
    before.sees("e", np.ones(INPUTS))
    if learns:
        before.answered(before.sent[-1], np.ones(SIZE))
    with pytest.raises(
        BadRecord, match="taken steps without noise" if learns else "sent embeddings without noise"
    ):
        restarted(before, Mechanism(1.0, 4.0, 1.0, 4.0, None, SECRET))


def test_a_step_has_no_less_noise_than_its_gradients_were_counted_with() -> None:
    """Protects mu from a restart between a gradient and its step: it was paid for at the sigma of then."""
    network = DenseNetwork([INPUTS, 400, SIZE], "tanh", dtype=np.float64)
    before = Party(
        BoundedOutput(network, 1.0, True), Mechanism(1.0, 4.0, 0.5, 6.0, None, SECRET), Steps("sgd", 1.0, 2)
    )
    before.sees("a", np.ones(INPUTS))
    before.answered(before.sent[-1], np.zeros(SIZE))
    after = restarted(before, Mechanism(1.0, 4.0, 0.5, 1.0, None, SECRET), rate=1.0, batch=2)
    parameters = after.parameters
    after.sees("b", np.ones(INPUTS))
    after.answered(after.sent[-1], np.zeros(SIZE))
    moved = (after.parameters - parameters) * 2 / 0.5
    assert np.std(moved) == pytest.approx(6.0, rel=5 / np.sqrt(2 * np.size(moved)))


def test_a_record_that_overflows_a_hidden_layer_is_not_learnt_from_and_spoils_nobody_s_step() -> None:
    """Protects the others' step, and the record: whether a step was taken at all would tell of it."""
    bounded = BoundedOutput(DenseNetwork([INPUTS, 8, SIZE], "relu"), 1.0, True)
    parameters = bounded.initial(1) * np.float32(1e21)
    inputs = np.ones((2, INPUTS), np.float32)
    inputs[0] *= 1e18
    with np.errstate(over="ignore", invalid="ignore"):
        total = bounded.backward_each(
            parameters, bounded.forward(parameters, inputs), np.ones((2, SIZE), np.float32), 1.0
        )
        alone = bounded.backward_each(
            parameters, bounded.forward(parameters, inputs[1:]), np.ones((1, SIZE), np.float32), 1.0
        )
    assert np.isfinite(total).all()
    np.testing.assert_array_equal(total, alone)


# ---- bounds


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["linear", "network"]),
    st.booleans(),
    st.sampled_from([np.float32, np.float64]),
    st.integers(-30, 17),
    st.integers(-12, 8),
    st.integers(-6, 6),
    st.integers(0, 2**32),
)
def test_no_record_passes_its_norms(
    kind: str, normalise: bool, dtype: Any, features: int, gradients: int, weights: int, seed: int
) -> None:
    """Protects the sensitivity: embeddings and every record's part of a step are bounded in both precisions,
    whatever the scale."""
    generator = np.random.default_rng(seed)
    bounded = function(kind, normalise, 1.5, dtype)
    parameters = (generator.normal(size=bounded.size) * 10.0**weights).astype(dtype)
    inputs = (generator.normal(size=(5, INPUTS)) * 10.0**features).astype(dtype)
    inputs[0] = 0.0
    cotangents = (generator.normal(size=(5, SIZE)) * 10.0**gradients).astype(dtype)
    done = bounded.forward(parameters, inputs)
    assert np.linalg.norm(done.outputs.astype(float), axis=1).max() <= 1.5
    norm = 0.25 * (1 - 1e-5)
    total = bounded.backward_each(parameters, done, cotangents, norm)
    each = []
    for row in range(5):
        alone = bounded.forward(parameters, inputs[row : row + 1])
        each.append(bounded.backward_each(parameters, alone, cotangents[row : row + 1], norm).astype(float))
    assert np.linalg.norm(each, axis=1).max() <= 0.25
    assert np.linalg.norm(total - np.sum(each, axis=0)) <= 1e-4


def test_what_overflows_is_shown_as_0_and_not_learnt_from() -> None:
    """Protects records whose embedding is infinite: that would be visible through any noise."""
    bounded = function("linear", dtype=np.float32)
    parameters = np.full(bounded.size, 1e25, np.float32)
    inputs = np.array([[1e17] * INPUTS, [1e-20] * INPUTS], np.float32)
    done = bounded.forward(parameters, inputs)
    assert not done.outputs[0].any()
    assert np.linalg.norm(done.outputs[1]) == pytest.approx(1.0, rel=1e-4)
    cotangents = np.array([[1, 2, 3, 4], [0, 0, 0, 0]], np.float32)
    assert not bounded.backward_each(parameters, done, cotangents, 1.0).any()


# ---- the budget


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_budget_is_never_exceeded(data: st.DataObject) -> None:
    """Protects the people behind the entities: whatever the order of samples, gradients, requests, ticks and
    restarts, what was sent and learnt of an entity, counted from outside, is within the budget, and what the
    party reports is not below it."""
    mechanism = Mechanism(1.0, 4.0, 1.0, 3.0, data.draw(st.sampled_from([0.5, 1.3, 2.2])), SECRET)
    steps = Steps("sgd", 0.1, data.draw(st.integers(1, 4)), data.draw(st.sampled_from([None, 2])))
    names = ["a", "b", "c"]
    records = {name: np.eye(INPUTS)[number] for number, name in enumerate(names)}
    party = Party(function("linear"), mechanism, steps, expiry=3.0, limit=2)
    shown: Counter[str] = Counter()
    squares: Counter[str] = Counter()
    kept: dict[bytes, bytes] = {}

    def count(party: Party) -> None:
        shown.update(one.entity for one in party.sent)
        for rows in party.function.stepped_on:
            for name in names:
                squares[name] += int((rows @ records[name]).sum()) ** 2

    sent: list[Embedding] = []
    for _ in range(data.draw(st.integers(1, 40))):
        what = data.draw(st.sampled_from(["sample", "gradient", "gradient", "again", "tick", "restart"]))
        before = len(party.sent)
        if what == "sample":
            name = data.draw(st.sampled_from(names))
            party.sees(name, records[name])
        elif what == "tick":
            party.now += 1.0
            party.role.receive([], party.now)
        elif what == "restart":
            count(party)
            later = Party(function("linear"), mechanism, steps, party.now, expiry=3.0, limit=2)
            for key, value in kept.items():
                later.role.restore(StateChange("state", 0, key, value))
            assert later.figure("privacy_mu") == party.figure("privacy_mu")
            party, before = later, 0
        elif sent:
            embedding = data.draw(st.sampled_from(sent))
            party.answered(embedding, None if what == "again" else np.ones(SIZE))
        sent += party.sent[before:]
        for change in party.role.changed_state():
            kept.pop(change.key, None)
            if change.value is not None:
                kept[change.key] = change.value
    count(party)
    costs = [np.sqrt(shown[name] * (2 / 4.0) ** 2 + squares[name] * (2 / 3.0) ** 2) for name in names]
    assert mechanism.budget is not None
    assert max(costs) <= mechanism.budget * (1 + 1e-9)
    assert max(costs) <= party.figure("privacy_mu") * (1 + 1e-9)


def test_an_entity_whose_budget_is_spent_holds_nobody_up() -> None:
    """Protects others from one whose budget is spent: asked for a newer embedding of it, the party does not
    go on waiting."""
    mechanism = Mechanism(1.0, 4.0, 1.0, 4.0, 0.6, SECRET)
    party = Party(function("linear"), mechanism, Steps("sgd", 0.1, 1, in_flight=1))
    party.sees("a", np.ones(INPUTS))
    party.sees("b", np.ones(INPUTS))
    assert [one.entity for one in party.sent] == ["a"]
    party.answered(party.sent[0], None)
    assert [one.entity for one in party.sent] == ["a", "b"]
    assert (party.figure("withheld_embeddings"), party.figure("embeddings_again")) == (1, 0)


@pytest.mark.parametrize("noise", ["embedding_noise", "gradient_noise", "reply_noise"])
def test_noise_that_hides_nothing_is_refused(noise: str) -> None:
    """Protects the figure of mu: noise so small that its square would overflow is a mistake that is told of
    at the start."""
    whole = {
        "embedding_norm": 100.0,
        "embedding_noise": 1.0,
        "gradient_norm": 1.0,
        "gradient_noise": 1.0,
        "secret_file": "secret",
    }
    least = 1e-4 if noise == "embedding_noise" else 1e-6
    for value in (1e-300, 0.99 * least):
        with pytest.raises(ValueError, match=f"{noise} = .*: at least {least:g} is expected"):
            PrivacySection(**{**whole, noise: value})
    with pytest.raises(
        ValueError,
        match=f"{noise} = .*: at most {re.escape(f'{1e11 * least:g}')} is expected: more noise leaves",
    ):
        PrivacySection(**{**whole, noise: 1.01e11 * least})
    smallest = PrivacySection(**{**whole, noise: least})
    assert smallest.embedding_norm is not None
    assert smallest.embedding_noise is not None
    mechanism = Mechanism(
        smallest.embedding_norm, smallest.embedding_noise, 1.0, smallest.gradient_noise, None, SECRET
    )
    assert np.isfinite(mechanism.cost(2**53, 2**53))


def test_reply_noise_hides_only_labels_within_their_range(tmp_path: Path) -> None:
    """Protects labels of the square loss: what tells more than 2 / reply_noise goes to the dead letters, with
    what to do."""
    (tmp_path / "secret").write_bytes(bytes(range(32)))
    (tmp_path / "secret").chmod(0o600)

    def coordinator(**privacy: Any) -> tuple[Any, Any]:
        made = VaflSettings.model_validate(
            {
                "federation": {"name": "f", "parties": ["a"], "embedding_size": 1},
                "role": {"kind": "vafl-coordinator"},
                "labels": {"topic": "outcomes", "label": "y", "label_range": (10.0, 20.0)},
                "learning": {"loss": "square"},
                "privacy": privacy,
            }
        )
        kind = ROLES["vafl-coordinator"]
        role = kind.build(made)
        role.open(0)
        return role, kind.channels(made).inputs["labels"].decode

    def gradient(role: Any, decode: Any, label: float) -> float:
        record = Record("outcomes", 0, 0, b"e", b'{"y": %a}' % label)
        embedding = Embedding(VERSION, role.fingerprint, "e", 1, 1, 0, encode_array(np.zeros(1, np.float32)))
        shown = Received("embeddings/a", embedding, Record("x", 0, 0, b"e", b""))
        sent = role.receive([Received("labels", decode(record), record), shown], 1.0)
        (value,) = [REPLY.decode(one.value).gradient for one in sent if one.channel == "gradients/a"]
        return float(np.frombuffer(value, np.float32)[0])

    private = {"reply_noise": 1.0, "secret_file": str(tmp_path / "secret")}
    for label in (9.999, 20.001, 1000.0):
        with pytest.raises(
            BadRecord, match=r"labels.label_range = \[10.0, 20.0\].*privacy.reply_noise"
        ) as caught:
            gradient(*coordinator(**private), label)
        assert caught.value.reason == "label"
    for label in (10.0, 20.0):
        assert abs(gradient(*coordinator(**private), label)) < 10
    # Without noise nothing is promised, and a label may surprise.
    assert gradient(*coordinator(), 1000.0) == pytest.approx(-2 * 99)


@pytest.mark.parametrize("values", [(1.0, 1.0), (2.0, 1.0), (0.0, np.inf), (np.nan, 1.0)])
def test_a_range_of_labels_is_one(values: tuple[float, float]) -> None:
    """Protects the coordinator from dividing by a range that is none: it is told of when the settings are
    read."""
    with pytest.raises(ValueError, match="two finite numbers are expected, the smaller one first"):
        EntityLabelsSection(topic="outcomes", label="y", label_range=values)
