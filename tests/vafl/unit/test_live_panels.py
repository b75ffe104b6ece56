"""The board of vertical federations, asked of a real Prometheus that has watched one through kills and
restarts."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator
from statistics import NormalDist

import pytest
from live.watched import NOTHING_REFUSED, TOLERANCE, Watched, federation
from soak.subject import FEDERATION, Plan

from streamfl.vafl.messages import REPLY

pytestmark = pytest.mark.long

LABELS, PREDICTIONS, PARTIES = "labels", f"{FEDERATION}.predictions", ("bank", "shop")
COUNT = 100
NOISE, NORMAL = 8, NormalDist()
PARTY_NOISE = (
    f"embedding_norm = 1\nembedding_noise = {NOISE}\ngradient_norm = 1\ngradient_noise = {NOISE}\nbudget_mu "
    "= 2"
)
LABEL_NOISE = "reply_noise = 2\nbudget_mu = 1.5"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A federation whose coordinator and a party were killed at work, and that rests."""
    folder = tmp_path_factory.mktemp("vertical")
    noises = {}
    for member, noise in (("shop", PARTY_NOISE), ("coordinator", LABEL_NOISE)):
        secret = folder / f"{member}.secret"
        secret.touch(0o600)
        secret.write_bytes(hashlib.sha512(member.encode()).digest())
        noises[member] = f'[privacy]\nsecret_file = "{secret}"\n{noise}\n'
    with federation(
        "vafl", Plan("async", "sqlite"), folder, lambda member, own: own + noises.get(member, "")
    ) as found:
        for number, killed in enumerate(("coordinator", "bank")):
            columns, labels = found.load(number * COUNT, (number + 1) * COUNT)
            shown = found.count(f"{FEDERATION}.bank.embeddings")
            found.write(columns)
            found.until_more(f"{FEDERATION}.bank.embeddings", shown)
            found.kill(killed)
            found.start(killed)
            found.rest()
            # What was counted and not scraped is lost with a killed worker: nobody is killed while
            # predictions are scored.
            found.write(labels)
            found.rest()
        # A worker that comes back and has nothing to do.
        found.restart("coordinator")
        found.calm_from_now()
        for part in found.load(2 * COUNT, 3 * COUNT):
            found.write(part)
            found.rest()
        yield found


def first_labels(watched: Watched) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in watched.bus.read(LABELS):
        found.setdefault((one.key or b"").decode(), json.loads(one.value or b"")["y"])
    return found


def test_loss_and_accuracy_are_those_of_the_topics(watched: Watched) -> None:
    """Protects whoever reads the board after a restart: loss and accuracy are the topics', whoever was
    killed."""
    predictions = {one["entity"]: one["prediction"] for one in watched.contents(PREDICTIONS)}
    told = [(predictions[name], label) for name, label in first_labels(watched).items()]
    assert len(told) > COUNT
    loss = sum(-math.log(chance if label else 1 - chance) for chance, label in told) / len(told)
    assert watched.value("Loss before the label", "all") == pytest.approx(loss, rel=TOLERANCE)
    right = sum((chance > 0.5) == bool(label) for chance, label in told) / len(told)
    assert watched.value("Accuracy before the label", "all") == pytest.approx(right, rel=TOLERANCE)


def test_counts_are_those_of_the_topics(watched: Watched) -> None:
    """Protects every line that is a rate: what workers count is what lies in the topics."""
    revisions = [json.loads(one.value or b"")["revision"] for one in watched.latest(PREDICTIONS)]
    replies = [
        REPLY.decode(one.value)
        for party in PARTIES
        for one in watched.latest(f"{FEDERATION}.{party}.gradients")
    ]
    gradients = sum(bool(reply.gradient) for reply in replies)
    embeddings = sum(watched.written(f"{FEDERATION}.{party}.embeddings") for party in PARTIES)
    earlier = {one.key for one in watched.earlier(LABELS)}
    labelled = {one.key for one in watched.latest(LABELS)} - earlier
    truth = {
        ("samples_total", "vafl-party"): sum(watched.written(f"samples-{party}") for party in PARTIES),
        ("embeddings_total", "vafl-party"): embeddings,
        ("embeddings_again_total", "vafl-party"): len(replies) - gradients,
        ("embeddings_total", "vafl-coordinator"): embeddings,
        ("predictions_total", "vafl-coordinator"): sum(number == 0 for number in revisions),
        ("revised_predictions_total", "vafl-coordinator"): sum(number > 0 for number in revisions),
        ("labels_total", "vafl-coordinator"): len(labelled),
        ("duplicate_labels_total", "vafl-coordinator"): watched.written(LABELS) - len(labelled),
        ("gradients_total", "vafl-coordinator"): gradients,
        ("gradients_total", "vafl-party"): gradients,
        ("requests_total", "vafl-coordinator"): len(replies) - gradients,
    }
    assert {one: watched.counted(*one) for one in truth} == truth


def test_privacy_is_what_was_released(watched: Watched) -> None:
    """Protects the figure that a budget is watched by: mu follows from how often a party showed an entity and
    learnt from it, and from how often its label was told, over all restarts."""
    shown = Counter((one.key or b"").decode() for one in watched.bus.read(f"{FEDERATION}.shop.embeddings"))
    replies = [REPLY.decode(one.value) for one in watched.bus.read(f"{FEDERATION}.shop.gradients")]
    learnt = Counter(reply.entity for reply in replies if reply.gradient)
    most = max(math.sqrt((count + learnt[name]) * (2 / NOISE) ** 2) for name, count in shown.items())
    assert watched.value("Privacy: mu against the budget", "mu") == pytest.approx(most)
    assert watched.value("Privacy: mu against the budget", "budget") == 2
    # The gradients of two labels of a logistic loss are 1 apart, and each label was told once.
    assert watched.value("Privacy of labels: mu against the budget", "mu") == pytest.approx(1 / 2)
    epsilon = watched.value("Privacy: epsilon")
    delta = NORMAL.cdf(most / 2 - epsilon / most) - math.exp(epsilon) * NORMAL.cdf(-most / 2 - epsilon / most)
    assert delta == pytest.approx(1e-5, rel=1e-3)


def test_no_line_is_empty(watched: Watched) -> None:
    """Protects panels from being empty, or NaN, on a federation that works, and after restarts."""
    # There are no rounds, and whoever has noise has it on steps too.
    without = {
        ("Rounds that timed out", "{{group}}"),
        ("Privacy: mu against the budget", "no guarantee, {{group}} {{instance}}"),
    }
    assert watched.empty() == NOTHING_REFUSED | without


def test_the_service_is_as_it_is(watched: Watched) -> None:
    """Protects whoever is on call: who is up, what waits, and how often workers were started again are as
    they were."""
    assert watched.service() == watched.resting
