"""Reads values from a worker's /metrics."""

from __future__ import annotations

import math

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["scraped"]


def scraped(text: str, name: str, **labels: str) -> float:
    """The sum of the series of this name with these labels; NaN if there is none."""
    series = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    found = [
        one.value for one in series if one.name == f"streamfl_{name}" and labels.items() <= one.labels.items()
    ]
    return sum(found) if found else math.nan
