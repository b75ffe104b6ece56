"""``streamfl demo quasi-newton``: a mail provider and a browser maker learn to find phishing sites, under
encryption."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from streamfl.contract.role import Record
from streamfl.contract.seeding import rng_for
from streamfl.quasi_newton.config import PrivateAlignmentSection, QuasiNewtonFederation, QuasiNewtonSettings
from streamfl.quasi_newton.encryption.end_to_end import OVERHEAD
from streamfl.quasi_newton.encryption.fixed_point import kinds
from streamfl.quasi_newton.encryption.section import EncryptionSection
from streamfl.quasi_newton.learning.section import CurvatureLearningSection
from streamfl.quasi_newton.messages import Message, codec
from streamfl.quasi_newton.tools.direct import Party, train
from streamfl.quasi_newton.tools.run import CurvatureOutcome, figures_of, run_curvature
from streamfl.quasi_newton.tools.simulated_members import members
from streamfl.roles.fragment_encoding import decoded_in_fragments
from streamfl.runtime.bus import Outgoing
from streamfl.simulation.pictures import (
    FEDERATION,
    LOCAL,
    MEAN,
    STYLES,
    can_draw,
    label_axes,
    new_picture,
    save_picture,
)
from streamfl.simulation.system_tools import Report
from streamfl.simulation.tables import numbers, read_data
from streamfl.simulation.vertical.table import VerticalTable
from streamfl.terminal.progress import progress

__all__ = ["demo"]

Floats = NDArray[np.float64]
# Web sites: what their address shows, what their page does, and whether they were phishing.
DATA = "river:Phishing"
COLUMNS = {
    "mail": ["is_popular", "long_url", "age_of_domain", "ip_in_url"],
    "browser": [
        "empty_server_form_handler",
        "popup_window",
        "https",
        "request_from_other_domain",
        "anchor_from_other_domain",
    ],
}
TEST, BATCH, KEY_BITS = 250, 256, 2048
# Virtual seconds that a message takes.
NETWORK_DELAY = 0.1
TITLES = {
    "together": "the mail provider and the browser maker, encrypted",
    "one table": "whoever had all columns in one table, by the same method",
    "logistic": "whoever had all columns in one table, by logistic regression",
    "alone": "the mail provider alone, which knows what was phishing",
}


class _Overheard:
    """The first inner products that the browser maker sent, as Kafka carries them."""

    def __init__(self, settings: QuasiNewtonSettings) -> None:
        own = codec(settings.message_bytes)
        self._decode = decoded_in_fragments(own.read)
        self._topic = f"{settings.federation.name}.browser.outputs"
        self.content = b""

    def __call__(self, record: Outgoing) -> None:
        if self.content or record.topic != self._topic:
            return
        message = self._decode(Record(record.topic, 0, 0, None, record.value))
        if isinstance(message, Message) and message.kind == "outputs":
            self.content = message.content[OVERHEAD:]

    def numbers(self, count: int) -> Floats:
        """The first 8 bytes of each ciphertext in its envelope, as a number between 0 and 1: (count,)."""
        size = len(self.content) // count
        begins = [int.from_bytes(self.content[at * size : at * size + 8], "big") for at in range(count)]
        return np.array(begins) / 2.0**64


def demo(out: Path, seed: int) -> Report:
    """Train the two companies together under encryption, two models of one joint table, and the mail provider
    alone.

    Draws how good the models are, what Kafka carries, and where the time goes.
    """
    settings, table = _settings(seed), _table(seed)
    heard = _Overheard(settings)
    with progress("iterations", stops=True) as work:
        together = run_curvature(
            settings, table, network_delay=NETWORK_DELAY, trace=True, overheard=heard, watch=work
        )
    scores = _scores(together)
    signs = 2 * table.labels[table.learnt :] - 1
    found = _figures(scores, signs)
    if can_draw():
        _draw(out, together, scores, signs, found, heard)
    summary = together.summary()
    spent = ", ".join(f"{step} {seconds:.1f}" for step, seconds in together.seconds_by_step.items())
    return Report(
        title=f"Phishing among {together.test_entities} sites of {DATA}, under {KEY_BITS} bits. Seconds: "
        f"{spent}",
        columns=("who learns", "AUC", "KS", "accuracy"),
        rows=[
            (title, *(f"{found[name][one]:.3f}" for one in ("auc", "ks", "accuracy")))
            for name, title in TITLES.items()
        ],
        figures={
            "runs": found,
            **{name: summary[name] for name in summary if name not in ("traffic", "guest_alone")},
        },
        interrupted=work.interrupted,
    )


def _settings(seed: int) -> QuasiNewtonSettings:
    federation = QuasiNewtonFederation(name="demo", seed=seed, parties=list(COLUMNS))
    return QuasiNewtonSettings(
        federation=federation,
        **members(federation, COLUMNS)[federation.guest_party],
        learning=CurvatureLearningSection(batch=BATCH),
        alignment=PrivateAlignmentSection(entities=BATCH),
        # The simulation makes up these secrets.
        encryption=EncryptionSection(
            key_bits=KEY_BITS, key_fingerprint="0" * 64, secret_file="", link_secret_file=""
        ),
    )


def _table(seed: int) -> VerticalTable:
    """The sites, shuffled by ``seed``."""
    data = read_data(DATA)
    labels = data.columns["y"].astype(np.float64)
    order = rng_for(seed, "demo", "rows").permutation(len(labels))
    return VerticalTable(
        [numbers(data, names, DATA)[order] for names in COLUMNS.values()], labels[order], TEST
    )


def _scores(together: CurvatureOutcome) -> dict[str, Floats]:
    """u of the test rows, or log-odds, by who has learnt."""
    trace, learning = together.trace, together.settings.learning.descent
    learnt, signs, batches = int(trace["entities"]), trace["labels"], trace["batches"]
    mail, browser = (trace[f"inputs/{name}"] for name in COLUMNS)
    own, other = (trace[f"weights/{name}"][0] for name in COLUMNS)
    numbers_of_one = kinds(1, BATCH, BATCH)
    joined = np.hstack([mail, browser])
    start = np.concatenate([own[:-1], other, own[-1:]])
    at_once = train(
        [Party(joined[:learnt], start)], signs[:learnt], learning, batches, numbers=numbers_of_one
    )
    alone = train([Party(mail[:learnt], own)], signs[:learnt], learning, batches, numbers=numbers_of_one)
    return {
        "together": trace["predictions"],
        "one table": at_once.outputs([joined[learnt:]]),
        "logistic": _logistic(joined, signs, learnt),
        "alone": alone.outputs([mail[learnt:]]),
    }


def _logistic(inputs: Floats, signs: Floats, learnt: int) -> Floats:
    """Log-odds of the test rows by logistic regression on all others, by Newton's method."""
    columns = np.hstack([inputs, np.ones((len(inputs), 1))])
    rows, ones = columns[:learnt], signs[:learnt] > 0
    weights = np.zeros(columns.shape[1])
    for _ in range(20):
        chances = expit(rows @ weights)
        hessian = (rows * (chances * (1 - chances))[:, np.newaxis]).T @ rows + 1e-6 * np.eye(len(weights))
        weights = weights - np.linalg.solve(hessian, rows.T @ (chances - ones))
    return np.asarray(columns[learnt:] @ weights)


def _figures(scores: dict[str, Floats], signs: Floats) -> dict[str, dict[str, float]]:
    def measured(outputs: Floats) -> dict[str, float]:
        figures = asdict(figures_of(outputs, signs))
        return {
            name: figures[name] if figures[name] is not None else math.nan
            for name in ("auc", "ks", "accuracy")
        }

    return {name: measured(outputs) for name, outputs in scores.items()}


def _draw(
    out: Path,
    together: CurvatureOutcome,
    scores: dict[str, Floats],
    signs: Floats,
    found: dict[str, dict[str, float]],
    heard: _Overheard,
) -> None:
    """Draws how well sites are classified, what Kafka carries of one party's sums, and where the time
    goes."""
    figure, (curves, said, spent) = new_picture(3, 13, 4.2)
    looks: dict[str, dict[str, Any]] = {
        "together": {"color": FEDERATION, "linewidth": 2.5},
        "logistic": {"color": "black", "linewidth": 1, "linestyle": STYLES[1]},
        "alone": {"color": LOCAL, "linewidth": 2.5},
    }
    names = {
        "together": "both, encrypted",
        "logistic": "one table, logistic regression",
        "alone": "the mail provider alone",
    }
    for name, look in looks.items():
        curves.plot(*_roc(scores[name], signs), label=f"{names[name]}: AUC {found[name]['auc']:.3f}", **look)
    curves.plot([0, 1], [0, 1], color=MEAN, linewidth=1, linestyle=STYLES[0])
    label_axes(curves, "Sites that nobody has learnt from", "share of honest sites that are stopped")
    curves.set_ylabel("share of phishing sites that are stopped")
    curves.legend(frameon=False, fontsize=8, loc="lower right")
    trace = together.trace
    first = trace["inputs/browser"][trace["batches"][0]] @ trace["weights/browser"][0]
    said.scatter(first, heard.numbers(BATCH), s=8, color=FEDERATION)
    label_axes(
        said, "What Kafka carries of the browser maker's sums", "the sum of a site, which nobody else sees"
    )
    said.set_ylabel("its ciphertext, as a share of the largest")
    steps = together.seconds_by_step
    spent.barh(list(steps), list(steps.values()), color=[FEDERATION] * (len(steps) - 1) + [MEAN])
    spent.invert_yaxis()
    label_axes(
        spent,
        f"Where the time goes, {KEY_BITS} bits",
        f"seconds, of {together.iterations} iterations of {BATCH} sites",
    )
    save_picture(
        figure, out, "streamfl: two companies find phishing sites, and neither shows the other a column"
    )


def _roc(outputs: Floats, signs: Floats) -> tuple[Floats, Floats]:
    """Shares of label -1 and of label 1 above each score, from the highest score on. Equal scores count
    together."""
    order = np.argsort(-outputs, kind="stable")
    ones = signs[order] > 0
    ends = np.append(np.flatnonzero(np.diff(outputs[order])), len(order) - 1)
    false, true = np.cumsum(~ones)[ends] / (~ones).sum(), np.cumsum(ones)[ends] / ones.sum()
    return np.append(0.0, false), np.append(0.0, true)
