"""The reports of ``streamfl inspect`` on POF-MKL's roles."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import numpy as np

from streamfl.contract.role import ConfigurationError
from streamfl.pofmkl.client.client_record import ClientSnapshot
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.learning.local_experts import LOCAL_EXPERTS
from streamfl.pofmkl.server.role import PofmklServer
from streamfl.pofmkl.tools.kernel_names import kernel_names
from streamfl.simulation.error_words import in_words
from streamfl.simulation.system_tools import Report
from streamfl.terminal.words import first_of

__all__ = ["client_report", "server_report"]

# A client's kernels and experts named in the table.
NAMED = 3


def client_report(role: PofmklClient, settings: PofmklSettings, client: str | None) -> Report:
    """Each client: its samples and labels, its errors, and the weights of its kernels and experts.

    The error is the RMSE of all predictions whose label came, in the label's own unit, next to the RMSE of
    the client's best kernel in hindsight. With loss = "logistic" it is the log loss. Names that begin with
    scaled are for labels from 0 to 1.
    """
    assert settings.samples is not None
    found = {key: one for key, one in sorted(role.snapshot().items()) if client in (None, key[1])}
    if client is not None and not found:
        raise ConfigurationError(f"--client {client!r}: no partition remembers it")
    low, high = settings.samples.label_range
    square = settings.learning.loss == "square"
    label = settings.samples.label if settings.labels is None else settings.labels.label
    names = _names(settings)
    rows, figures = [], []
    for (partition, name), one in found.items():
        _, labels, squared, loss = role.learner.sums([one.row])[0].tolist()
        best_loss = float(role.learner.kernel_losses([one.row]).min())
        weights = _named(names, role.learner.weights(one.row).tolist())
        rmse = (high - low) * math.sqrt(squared / labels) if labels else None
        rmse_best = (high - low) * math.sqrt(best_loss / labels) if labels and square else None
        errors = (
            (rmse, rmse_best) if square else (loss / labels, best_loss / labels) if labels else (None, None)
        )
        best = sorted(weights, key=lambda expert: -weights[expert])
        figures.append(
            {
                "client": name,
                "partition": partition,
                "samples": one.samples,
                "labels": one.labels,
                "waiting": one.waiting,
                "rmse": rmse,
                "rmse_best_kernel": rmse_best,
                "scaled_loss": loss,
                "scaled_regret": loss - best_loss,
                "updates_sent": one.uploads_sent,
                "last_seen": one.seen_at,
                "silent": _is_over(one.silent_from),
                "last_label": one.labelled_at,
                "unlabelled": _is_unlabelled(one),
                "weights": {expert: weights[expert] for expert in best},
            }
        )
        shown = best if client is not None else best[:NAMED]
        between = "\n" if client is not None else ", "
        said = between.join(f"{expert} {weights[expert]:.2f}" for expert in shown)
        rows.append((name, *_client_row(partition, one, errors), said))
    error = f"RMSE, units of {label}" if square else "log loss, nats"
    counts = ("client", "partition", "samples", "labels")
    columns = (*counts, error, "its best kernel's", "updates", "last seen", "weights")
    return Report("Clients", rows, {"clients": figures}, columns)


def _client_row(partition: int, client: ClientSnapshot, errors: Iterable[float | None]) -> tuple[str, ...]:
    """What a row of the table says of a client, between its name and its weights."""
    return (
        str(partition),
        str(client.samples),
        str(client.labels),
        *("" if error is None else in_words(error) for error in errors),
        str(client.uploads_sent),
        _when(client.seen_at) + _missing(client),
    )


def server_report(role: PofmklServer, settings: PofmklSettings, client: str | None) -> Report:
    """Each shard: its version, the updates in it, its clients, and the norms of its kernels' parameters."""
    # The server processes its restored state at the first tick. Nothing is written.
    role.receive([], time.time())
    silent = {name for name, at in role.silent_from().items() if _is_over(at)}
    rows, figures = [], []
    for number, shard in sorted(role.snapshot().items()):
        if client is not None and client not in shard.members:
            continue
        lengths = np.linalg.norm(shard.parameters.astype(np.float64), axis=1)
        kernels = range(number, settings.kernel_count, settings.federation.shards)
        largest = sorted(zip(kernels, lengths.tolist(), strict=True), key=lambda one: -one[1])
        figures.append(
            {
                "shard": number,
                "model_version": shard.model_version,
                "updates": shard.updates,
                "members": sorted(shard.members),
                "silent": sorted(silent & shard.members),
                "waiting": shard.waiting,
                "lengths": dict(largest),
            }
        )
        shown = ", ".join(f"{kernel}: {length:.3g}" for kernel, length in largest[:NAMED])
        numbers = (number, shard.model_version, shard.updates, len(shard.members), shard.waiting)
        rows.append((*map(str, numbers), first_of(sorted(silent & shard.members), NAMED), shown))
    if client is not None and not rows:
        raise ConfigurationError(f"--client {client!r}: the server does not know it")
    columns = ("shard", "version", "updates", "clients", "in open round", "silent", "largest kernels")
    return Report("Shards of the model", rows, {"shards": figures}, columns)


def _names(settings: PofmklSettings) -> Sequence[str]:
    """Names of a client's experts, kernels first, in the learner's order."""
    return [*kernel_names(settings), *([] if settings.learning.preset == "paper" else _local(settings))]


def _named(names: Sequence[str], weights: Sequence[float]) -> dict[str, float]:
    """Weights by expert. Experts without a name get their number."""
    more = [f"expert {number}" for number in range(len(names), len(weights))]
    return dict(zip([*names, *more], weights, strict=False))


def _local(settings: PofmklSettings) -> list[str]:
    return [*(name for name in LOCAL_EXPERTS if name in settings.experts.local), *settings.experts.river]


def _missing(client: ClientSnapshot) -> str:
    """What has not come from the client for longer than usual."""
    if _is_over(client.silent_from):
        return ", silent"
    if client.labelled_at is not None and _is_unlabelled(client):
        return f", no label since {_when(client.labelled_at)}"
    return ""


def _is_unlabelled(client: ClientSnapshot) -> bool:
    """Whether its samples come, and its labels have paused for longer than usual."""
    return _is_over(client.unlabelled_from) and not _is_over(client.silent_from)


def _is_over(usual_until: float | None) -> bool:
    """Whether a pause has lasted for longer than usual."""
    return usual_until is not None and time.time() >= usual_until


def _when(seconds: float) -> str:
    if seconds <= 0:
        return "never"
    return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds")[:-6]
