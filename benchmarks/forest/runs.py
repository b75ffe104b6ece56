"""The runs of the forest's study: a method on a cell, disturbed or not, and what is kept of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.forest.cells import Stream, deal, disturbed
from benchmarks.forest.challengers import LOCAL, POOLED, local, pooled
from benchmarks.forest.default import Recording, record, settings_of, with_forest
from benchmarks.forest.messages import BLOCK, EVIDENCE, PART
from benchmarks.forest.reference import Forest
from benchmarks.forest.rules import Rules
from benchmarks.forest.study import grow, losses

__all__ = ["CHANGED_RULES", "METHODS", "PARTS", "VARIANTS", "Kept", "measure"]

Floats = NDArray[np.float64]

# Settings of the forest beside the default, which sends one kernel with a sample: rules, and what else
# differs.
VARIANTS: dict[str, dict[str, Any]] = {
    "forest": {},
    "forest, lag 5 + 5": {"lag": 5},
    "forest with A": {"shared": True},
    "forest with B": {"robust": True},
    "forest with A and B": {"shared": True, "robust": True},
    "A without forest": {"shared": True, "bare": True},
    "B without forest": {"robust": True, "bare": True},
    "forest, 300 bytes of items": {"rules": {"item_bytes": 300}},
    "forest, 500 bytes of items": {"rules": {"item_bytes": 500}},
    "forest, 3,170 bytes of items": {"rules": {"item_bytes": 3170}},
    "forest, no stacking": {"stacking": False},
    "forest, 54 kept": {"rules": {"kept": 54}},
    "forest, kept as codes": {"kept_codes": True},
}
# What the rules of the forest were chosen among, one change at a time.
CHANGED_RULES: dict[str, dict[str, Any]] = {
    "three levels in every block": {"few": 0.0},
    "two levels in every block": {"few": float("inf")},
    "one level in small blocks": {"few_levels": 1},
    "16 candidates": {"candidates": 16},
    "24 candidates": {"candidates": 24},
    "a cell splits from 20 items": {"least": 20},
    "a cell splits from half of the expected items": {"share": 0.5},
    "100 items expected in a block": {"most": 100},
    "400 items expected in a block": {"most": 400},
    "400 items, and a cell splits from .9 of them": {"most": 400, "share": 0.9},
    "no draws by importance": {"importance": 0.0},
    "a quarter of draws by importance": {"importance": 0.25},
    "0.7 of draws by importance": {"importance": 0.7},
    "one feature may hold all importance": {"cap": 1.0},
    "thresholds over the whole cell": {"tight": False},
    "labels over 4 deviations": {"reach": 4.0},
    "the newest samples first": {"order": "samples"},
    "no renewal": {"renewed": 0.0},
    "a shadow takes over at any size": {"grown": 0.0},
    "renewal at 2 times the labels": {"growth": 2.0},
    "renewal at 5 times the labels": {"growth": 5.0},
    "12 trees": {"trees": 12},
    "24 trees": {"trees": 24},
    "128 samples kept": {"kept": 128},
    "a value is published whenever it changes": {"news": 1.0},
    "a value is published at 1.5 times its samples": {"news": 1.5},
    "residuals over 4 medians dropped": {"trust": True},
    "every client is believed": {"doubt": float("inf")},
    "no cap on a client's items": {"claim": float("inf")},
    "doubt above 2": {"doubt": 2.0},
    "doubt above 3": {"doubt": 3.0},
    "a cap of 1 times the labels": {"claim": 1.0},
    "no guard": {"doubt": float("inf"), "claim": float("inf")},
}
VARIANTS |= {name: {"rules": changed} for name, changed in CHANGED_RULES.items()}
# What a newcomer may download; bytes of an item at the server (cell u32, answers u32, label u8, client u16);
# of a kept sample beside its inputs in a client's changelog; of a version's bitmap "sent" there, with its
# key.
NEWCOMER, SERVER_ITEM, SLOT, BITMAP = 400_000, 11, 8, 36
# What the costs are shown of.
PARTS = (
    "forest, 300 bytes of items",
    "forest, 500 bytes of items",
    "forest, 3,170 bytes of items",
    "forest, no stacking",
    "forest, 54 kept",
    "forest, kept as codes",
)
METHODS = ("default", "default, M = 1", *VARIANTS, *LOCAL, *POOLED)


class Kept:
    """Results by run, in a file of lines; a run that is there is not run again."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.of: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            self.of = {
                line["run"]: line for line in map(json.loads, path.read_text(encoding="utf-8").splitlines())
            }

    def has(self, *run: object) -> bool:
        return " | ".join(map(str, run)) in self.of

    def get(self, run: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if run not in self.of:
            started = time.process_time()
            self.of[run] = {"run": run, **compute(), "seconds": round(time.process_time() - started, 1)}
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(self.of[run]) + "\n")
        return self.of[run]


def _newcomer(forest: Forest, room: float = np.inf) -> tuple[int, Floats]:
    """Bytes of the current trees' blocks and values, and what they say of every client's last 20 samples.

    room: as many bytes of them as a newcomer has read, blocks in the order of their numbers in all trees.
    """
    size, blocks, cells = forest.blocks.size, forest.blocks, forest.cells
    there = np.isin(blocks["version"][:size], forest.held[: forest.rules.trees])
    split = cells["child"][blocks["cell"][:size]] >= 0
    cost = np.where(
        there & split, BLOCK + PART * blocks["parted"][:size] + 2 * (blocks["parted"][:size] + 1), 0
    )
    order = np.argsort(np.where(there, blocks["number"][:size], size), kind="stable")
    read = np.zeros(size, np.bool_)
    read[order[np.cumsum(cost[order]) <= room]] = True
    inputs = forest.inputs[:, -20:].reshape(-1, forest.inputs.shape[2])
    said = np.zeros((forest.rules.trees, len(inputs)))
    for tree, version in enumerate(forest.held[: forest.rules.trees]):
        cell = np.full(len(inputs), forest.versions["cell"][version])
        going = np.arange(len(inputs))
        while len(going):
            of = cell[going]
            going = going[(cells["child"][of] >= 0) & read[cells["block"][of]]]
            at = cell[going]
            cell[going] = cells["child"][at] + (inputs[going, cells["feature"][at]] > cells["threshold"][at])
        said[tree] = cells["told"][cell]
    return int(cost[read].sum()), np.nanmean(said, 0)


def _state(forest: Forest) -> int:
    """Bytes of a client's kept samples (f32, number and label), a block's number (u16) and a bit a sample and
    version."""
    kept, versions = forest.ring.shape[1], 2 * forest.rules.trees
    return int(kept * (4 * forest.inputs.shape[2] + SLOT + 2 * versions) + kept * versions // 8)


def _folder() -> Path:
    return Path(os.environ["STREAMFL_DATA"])


@lru_cache(maxsize=2)
def _stream(cell: str, what: str, seed: int) -> Stream:
    stream = deal(cell, seed, _folder())
    return disturbed(stream, what) if what else stream


@lru_cache(maxsize=2)
def _recording(cell: str, what: str, seed: int, kernels: int, shared: bool, robust: bool) -> Recording:
    stream = _stream(cell, what, seed)
    settings = settings_of(len(stream.labels), seed, stream.loss, kernels)
    return record(settings, stream.inputs, stream.told, stream.late, shared, robust)


def _predictions(method: str, cell: str, what: str, seed: int) -> tuple[Floats, dict[str, Any]]:
    """(T, K), and figures of the run."""
    stream = _stream(cell, what, seed)
    if method == "default":
        return _recording(cell, what, seed, 5, False, False).predictions, {}
    if method == "default, M = 1":
        return _recording(cell, what, seed, 1, False, False).predictions, {}
    if method in POOLED or method in LOCAL:
        judged = replace(stream, labels=stream.told)
        return (pooled if method in POOLED else local)(method, judged, seed), {}
    variant = VARIANTS[method]
    recording = _recording(cell, what, seed, 1, variant.get("shared", False), variant.get("robust", False))
    if variant.get("bare"):
        return recording.predictions, {}
    lag, stacking = variant.get("lag", 0), variant.get("stacking", True)
    started = time.process_time()
    grown = grow(
        stream, Rules(**variant.get("rules", {})), seed, recording.predictions if stacking else None,
        up=lag, down=lag, kept_codes=variant.get("kept_codes", False),
    )  # fmt: skip
    spent = time.process_time() - started
    forest = grown.forests[-1]
    sent = np.isfinite(stream.labels).sum()
    (whole, said), (part, cut) = _newcomer(forest), _newcomer(forest, NEWCOMER)
    figures = {
        "bytes": round(float(sum(one.bytes_up.sum() for one in grown.forests) / sent), 1),
        "alarms": grown.alarms,
        "cells": [one.cells.size for one in grown.forests],
        "moments": round(float(sum(one.tables.bytes_up for one in grown.forests) / sent), 1),
        "evidence": EVIDENCE + recording.calls[0][1].shape[1] + 1,
        **{
            f"{what}_down": round(bytes_down / stream.labels.shape[1], 1)
            for what, bytes_down in forest.bytes_down.items()
        },
        "newcomer": whole,
        "part": part,
        "part_apart": round(1e3 * float(np.square(said - cut).mean()), 4),
        "server_items": forest.most_stored * SERVER_ITEM,
        "changelog": round(float(4 * stream.inputs.shape[2] + SLOT + BITMAP * forest.runs / sent), 1),
        "client_state": _state(forest),
        "microseconds": round(1e6 * spent / sent),
        **forest.count,
    }
    trees = np.where(np.isfinite(grown.predictions[1]), grown.predictions[1], grown.predictions[0])
    trees = np.nan_to_num(trees, nan=0.5 if stream.loss == "logistic" else 0.0)
    figures["alone"] = float(
        1e3 * losses(trees, stream.labels, stream.loss)[stream.judged & np.isfinite(stream.labels)].mean()
    )
    # A forest that has ended speaks no more; where a second forest was never begun, there is one expert.
    forests = grown.predictions if grown.alarms else grown.predictions[:1]
    return with_forest(recording, forests, stream.told, stream.late, 2 * lag), figures


def measure(method: str, cell: str, what: str, seed: int, kept: Kept) -> dict[str, Any]:
    """Errors times 1000 of the judged predictions (``error``), of those in the second half (``half``), and
    figures of the run."""

    def compute() -> dict[str, Any]:
        predictions, figures = _predictions(method, cell, what, seed)
        stream = _stream(cell, what, seed)
        lost = 1e3 * losses(predictions.T, stream.labels, stream.loss)
        judged = stream.judged & np.isfinite(stream.labels)
        half = judged & (np.arange(lost.shape[1]) >= lost.shape[1] // 2)
        by_client = [float(lost[k][judged[k]].mean()) for k in range(len(lost)) if judged[k].any()]
        return {
            "error": float(lost[judged].mean()),
            "half": float(lost[half].mean()),
            "worst": max(by_client),
            **figures,
        }

    return kept.get(f"{method} | {cell} | {what} | {seed}", compute)
