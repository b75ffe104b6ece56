"""Why records are refused or ignored, and notices in the log, on the pages: from the declarations of their
reasons."""

from __future__ import annotations

from collections.abc import Mapping

from streamfl.contract.refusals import CORRECT, IGNORED, NOTICES, REFUSALS, Reason
from streamfl.contract.system import System
from streamfl.monitoring.pages import table
from streamfl.runtime.health import REASONS as NOT_READY
from streamfl.runtime.metrics import WorkerMetrics

__all__ = ["reasons_section"]

REFUSED = (
    "A refused record of an input becomes a [dead letter](../messages.md#dead-letters). One of the model's "
    f"topic is only counted, in `{WorkerMetrics.table_rejections}`. Where the table names nothing to do: "
    f"{CORRECT}."
)
NOTED = "The log has the first notice of each reason, with its facts, and then a count."
PASSED_OVER = (
    f"`{WorkerMetrics.records_passed_over}` counts records that are no messages and nobody's mistake."
)


def reasons_section(system: System | None) -> str:
    """The reasons of a system, or no text if it has none. None: those of every worker."""
    refusals, notices = (system.refusals, system.notices) if system else (REFUSALS, NOTICES)
    parts = {"Refused records": (REFUSED, refusals), "Notices in the log": (NOTED, notices)}
    if system is None:
        parts["Ignored records"] = PASSED_OVER, IGNORED
        not_ready = {reason: Reason(meaning) for reason, meaning in NOT_READY.items()}
        parts["Not ready"] = "`/readyz` says what is wrong and what to do.", not_ready
    return "\n\n".join(
        f"### {heading}\n\n{text}\n\n{_table(reasons)}"
        for heading, (text, reasons) in parts.items()
        if reasons
    )


def _table(reasons: Mapping[str, Reason]) -> str:
    return table(
        ("reason", "meaning", "what to do"), [(f"`{name}`", *reasons[name]) for name in sorted(reasons)]
    )
