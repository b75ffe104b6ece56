"""Checks the state that a POF-MKL client restores: numbers that it cannot have written would spoil its
predictions and updates.

The bounds follow from those of the inputs: samples below ``LARGEST_NUMBER``, labels within ``LARGEST_LABEL``
of the learning scale."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import check_within
from streamfl.records.fields import LARGEST_LABEL, LARGEST_NUMBER

__all__ = ["check_entry", "check_inputs", "check_kept", "check_label", "check_size", "check_snapshot"]

MOST = 2**53
# The bit that tells a quiet NaN from a signalling one, by the bytes of the number.
QUIET = {4: 1 << 22, 8: 1 << 51}
# Experts are clipped to the range of a client's labels, plus once that range on either side, plus rounding.
LARGEST_EXPERT = 3.001 * LARGEST_LABEL
LARGEST_LOSS = np.square(2 * LARGEST_EXPERT)
# The projection of an input onto random directions is not much longer than the input.
LARGEST_PROJECTION = 100 * LARGEST_NUMBER
# Bound on a client's own steps, by kernel: normalised steps do not lead further from parameters that the
# model may have.
LARGEST_OWN_STEP = 1e7
# Bound on the ridge's weights: its step never makes a weight nearly as large.
LARGEST_WEIGHT = 1e6


def check_label(label: float, logistic: bool) -> None:
    """BadRecord for a label that every reader of samples would refuse."""
    check_within(label, -LARGEST_LABEL, LARGEST_LABEL, "a label")
    if logistic and label not in (0.0, 1.0):
        raise BadRecord(
            "label", f"a label of {label:g} is remembered, 0 or 1 is expected with the logistic loss"
        )


def check_inputs(inputs: NDArray[Any], dimension: int) -> None:
    """BadRecord for features that no client can have remembered.

    Their sum may be larger than a reader allows, since each may have been clipped to what came before it.
    """
    if inputs.shape != (dimension,):
        raise BadRecord("shape", f"a sample with {len(inputs)} features is remembered, not {dimension}")
    check_within(inputs, -1.001 * LARGEST_NUMBER, 1.001 * LARGEST_NUMBER, "features")


def check_snapshot(moments: Any, mixture: Any, ridge: float, logistic: bool) -> None:
    """BadRecord for a snapshot with malformed moments or mixture, or with moments and mixture of different
    journal entries."""
    entries = int(moments["entries"])
    counts = [int(moments[name]) for name in ("samples", "labels", "kept")]
    samples, labels = float(mixture["sums"][0]), float(mixture["sums"][1])
    if not 0 <= entries <= MOST or int(mixture["entries"]) != entries:
        raise BadRecord(
            "malformed",
            f"of a client's moments and mixture one has {entries} entries, one {mixture['entries']}",
        )
    if (
        not all(0 <= count <= entries for count in counts)
        or samples != counts[0]
        or not max(counts[1:]) <= labels <= samples
    ):
        raise BadRecord(
            "malformed",
            f"{counts} samples, labels and kept do not go with {entries} entries, {labels:g} labels",
        )
    largest = LARGEST_LABEL + 1e-3
    check_within(moments["origin"], -LARGEST_PROJECTION, LARGEST_PROJECTION, "the first sample")
    check_within(moments["input_mean"], -LARGEST_NUMBER, LARGEST_NUMBER, "means of inputs")
    check_within(
        moments["input_squares"], 0.0, 4 * np.square(LARGEST_NUMBER) * max(1, samples), "deviations of inputs"
    )
    for name in ("label_mean", "low", "high"):
        check_within(moments[name], -largest, largest, f"{name} of the labels")
    check_within(moments["high"] - moments["low"], 0.0, 2 * largest, "the range of the labels")
    check_within(
        moments["label_squares"], 0.0, np.square(2 * largest) * max(1.0, labels), "deviations of labels"
    )
    _check_lags(moments["lags"])
    check_within(mixture["losses"], 0.0, 40 * LARGEST_LOSS, "losses")
    check_within(mixture["count"], 0.0, 40.0, "the count of losses")
    check_within(mixture["kernel_losses"], 0.0, LARGEST_LOSS * max(1.0, labels), "losses of kernels")
    check_within(mixture["sums"][2:], 0.0, LARGEST_LOSS * max(1.0, labels), "sums of losses")
    check_within(mixture["ridge_weights"], -LARGEST_WEIGHT, LARGEST_WEIGHT, "weights of the ridge")
    covariance = mixture["ridge_covariance"]
    check_within(covariance, -1.001 / ridge, 1.001 / ridge, "the covariance of the ridge")
    if (
        not np.allclose(covariance, covariance.T, rtol=0, atol=1e-9)
        or np.linalg.eigvalsh(covariance)[0] < -1e-9
    ):
        raise BadRecord("malformed", "the covariance of the ridge is none")


def check_entry(entry: Any, dimension: int, logistic: bool) -> None:
    """BadRecord for a malformed entry of the journal, or forecast that waits for its label. Checks the fields
    that it has."""
    names = entry.dtype.names or ()
    check_inputs(entry["inputs"], dimension)
    for name, low, high in (("number", 1, MOST), ("known", 0, MOST)):
        if name in names:
            check_within(entry[name], low, high, name)
    if "label" in names:
        check_label(float(entry["label"]), logistic)
    for name in ("experts", "predictions", "pivot"):
        if name in names and logistic:
            # A probability of 0 or 1 could have an infinite loss.
            check_within(entry[name], 1e-18, 1 - 1e-16 if entry[name].dtype.itemsize == 8 else 1 - 1e-7, name)
        elif name in names:
            check_within(entry[name], -LARGEST_EXPERT, LARGEST_EXPERT, name)
    if "lags" in names:
        _check_lags(entry["lags"])


def check_kept(kept: NDArray[np.float32], width: int, label: int) -> None:
    """BadRecord for a malformed kept sample: ``width`` projected inputs, the labels before it, its own at
    ``label``, its error."""
    check_within(kept[:width], -LARGEST_PROJECTION, LARGEST_PROJECTION, "a kept sample")
    _check_lags(kept[width:label])
    check_within(kept[label], -LARGEST_LABEL, LARGEST_LABEL, "the label of a kept sample")
    check_within(kept[label + 1 :], 0.0, 1.0, "the error of a kept sample")


def _check_lags(lags: NDArray[Any]) -> None:
    """BadRecord for malformed labels before a sample. NaN stands for no label; a signalling NaN would warn
    wherever it is used."""
    absent = np.isnan(lags)
    if absent.any():
        words = lags.astype(lags.dtype.newbyteorder("=")).view(f"u{lags.dtype.itemsize}")
        if (absent & (words & QUIET[lags.dtype.itemsize] == 0)).any():
            raise BadRecord("not_finite", "a label before a sample is a signalling NaN")
        lags = lags[~absent]
    check_within(lags, -LARGEST_LABEL, LARGEST_LABEL, "labels before a sample")


def check_size(content: bytes, expected: int) -> None:
    """BadRecord if a part of a client's state has another length."""
    if len(content) != expected:
        raise BadRecord(
            "shape",
            f"a part of a client's state has {len(content)} bytes, not {expected}: it is of other settings",
        )
