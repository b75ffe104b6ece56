"""What members count, and the metrics' help. Every figure follows from names, times and releases, never from a row's values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from streamfl.contract.role import Measurement

__all__ = ["COUNTS", "PHASES", "measured_place"]

COUNTS: Mapping[str, str] = {
    "samples": "Records of own columns received, whatever their content",
    "labels": "Records of labels received, whatever their content",
    "repeated_records": "Records of entities that already had one of the same kind; the first one counts",
    "spent_entities": "Records of entities that have no budget left for a fit",
    "displaced_entities": "Incomplete entities that were dropped for newer ones",
    "announced_entities": "Entities that were announced to the server",
    "left_out_entities": "Entities that a party announced beyond the server's window.limit, and that are in no window",
    "charged_entities": "Entities that were charged the cost of a fit; an entity counts once for each charge",
    "windows": "Windows that were frozen at a party, or filled at the server",
    "iterations": "Iterations that a party answered, or the server decided",
    "releases": "Links of the ledger's chain: each records a frozen window or a release",
    "refused_releases": "Releases that were held back because the ledger file does not match the state",
    "shown_columns": "Columns that were shown to the server for the first time in their window",
    "uplink_numbers": "Numbers of parties' releases: a signed index is one, a sketch as many as it has rows",
    "uplink_bytes": "Bytes of parties' releases in fits, as accepted by the server",
    "signed_indices": "Vertices that parties have sent to the server",
    "models": "Models that fits produced",
    "missing_answers": "Answers of parties that did not come in time",
    "timed_out_rounds": "Rounds of a fit that the server continued although not every party had answered in time",
    "repeated_asks": "Manifests and requests that were sent again, because no present party had answered",
    "late_answers": "Answers of parties that came after the server had gone on without them",
    "repeated_messages": "Messages that were repeated, or too late",
    "partials": "Parts of predictions that a party sent",
    "early_records": "Records that came before the party's first model, so that no prediction was made for them",
    "unpredicted_entities": "Records of entities without budget for another prediction, or while window.limit of them already "
        "waited",
    "predictions": "Predictions that were published",
    "expired_predictions": "Predictions that were given up because a party's part was missing for too long, or newer ones came",
    "bytes_sent": "Bytes of messages to other members",
    "work": "Computations that were started in other processes",
}

PHASES: Mapping[str, tuple[str, ...]] = {
    "party": ("waits for a window", "in a fit"),
    "server": ("waits for entities", "waits for parties to freeze the window", "in a fit"),
}
"""The meaning of each phase number, by member."""


def measured_place(member: str, window: int, phase: int, iteration: int) -> Iterator[Measurement]:
    """Gauges of a member's window, phase and iteration. member: a key of :data:`PHASES`. iteration: how many are done."""
    yield Measurement("window", "gauge", "Number of the latest window", window, (), True)
    meanings = ", ".join(f"{number} {meaning}" for number, meaning in enumerate(PHASES[member]))
    yield Measurement("phase", "gauge", f"Phase of the member: {meanings}", phase, (), True)
    yield Measurement("iteration", "gauge", "Iterations of the fit that are done", iteration, (), True)
