"""A soak from its first sample to its verdict."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from broker import Broker
from end_txn_proxy import EndTxnProxy
from rich.console import Console
from rich.table import Table
from soak.faults import Killer, NotRecovered
from soak.federation import Federation
from soak.subject import Plan, find_soaked
from soak.verdict import judge

__all__ = ["print_report", "run"]


def run(
    name: str,
    plan: Plan,
    seconds: float,
    outage_seconds: float = 0.0,
    kinds: Iterable[str] | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Run a system under faults by seed for ``seconds``, or under these ``kinds`` in order, then an outage.
    Returns a report for JSON.

    ConfigurationError if the system has no soak. RuntimeError if the cluster cannot be started.
    """
    say = console or Console(quiet=True)
    _, system = find_soaked(name)
    with (
        tempfile.TemporaryDirectory(prefix="streamfl-soak-") as folder,
        EndTxnProxy(plan.nodes) as proxy,
        Broker(nodes=plan.nodes, proxy=proxy) as broker,
    ):
        with Federation(system, plan, broker, Path(folder)) as federation:
            begin = time.monotonic()
            killer = Killer(federation, proxy, outage_seconds)
            failure, codes = "", []
            try:
                killer.begin()
                for kind in killer.kinds_by_seed() if kinds is None else kinds:
                    if kinds is None and time.monotonic() - begin > seconds:
                        break
                    killer.strike(kind)
                    fault = killer.faults[-1]
                    say.print(
                        f"{fault.at:6.0f} s  {fault.kind:36} {fault.victim:32} no prediction for "
                        f"{fault.stall:5.1f} s"
                    )
                if outage_seconds:
                    killer.strike("outage")
                    fault = killer.faults[-1]
                    say.print(
                        f"{fault.at:6.0f} s  {fault.kind:36} {fault.victim:32} no prediction for "
                        f"{fault.stall:5.1f} s"
                    )
                federation.load.end()
                killer.catch_up("the end of the load")
                federation.rest()
                codes = federation.leave()
            except NotRecovered as stuck:
                failure = str(stuck)
            written = federation.load.written
            verdict = judge(federation)
        faults = [asdict(fault) for fault in killer.faults]
        wrong = [
            *(
                [failure, "it was at work when this gave up: what it had not predicted yet counts as lost"]
                if failure
                else []
            ),
            *verdict.wrong,
            *(
                f"a transaction began under an epoch whose EndTxn might still come: {one}"
                for one in proxy.doubtful[:3]
            ),
            *_bad_exits(federation, codes),
        ]
        return {
            "system": name,
            "plan": asdict(plan),
            "seconds": round(time.monotonic() - begin, 1),
            "samples": verdict.samples,
            "samples_written": written,
            "lost": verdict.lost,
            "doubled": verdict.doubled,
            "counts": verdict.counts,
            "faults": [{name: _rounded(value) for name, value in fault.items()} for fault in faults],
            "by_kind": _by_kind(faults),
            "outages": [asdict(outage) for outage in killer.outages],
            "exits": {_exit(code): count for code, count in sorted(federation.exits.items())},
            "wrong": wrong,
            "log": _kept(federation.log) if wrong else None,
        }


def print_report(report: dict[str, Any], console: Console) -> None:
    """Print the table of faults and the counts."""
    table = Table(
        "fault", "times", "lasted, longest (s)", "no prediction, mean (s)", "no prediction, longest (s)"
    )
    for kind, figures in report["by_kind"].items():
        table.add_row(
            kind, *(str(figures[name]) for name in ("times", "lasted_longest", "stall_mean", "stall_longest"))
        )
    console.print(table)
    for name, figure in {
        **{name: report[name] for name in ("samples", "lost", "doubled")},
        **report["counts"],
    }.items():
        console.print(f"{name.replace('_', ' ')}: {figure}")
    for outage in report["outages"]:
        console.print(f"memory in MB over an outage of {outage['seconds']:g} s: {outage}")
    for text in report["wrong"][:20]:
        console.print(f"WRONG: {text}")
    if report["log"] is not None:
        console.print(f"What the processes said: {report['log']}")


def _kept(log: Path) -> str:
    """A copy that is kept when the soak's folder is deleted."""
    return str(shutil.copy(log, tempfile.mkdtemp(prefix="streamfl-soak-wrong-")))


def _by_kind(faults: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for fault in faults:
        found.setdefault(fault["kind"], []).append(fault)
    figures: dict[str, dict[str, float]] = {}
    for kind, those in sorted(found.items()):
        stalls = [fault["stall"] for fault in those]
        figures[kind] = {
            "times": len(those),
            "lasted_longest": _rounded(max(fault["lasted"] for fault in those)),
            "stall_mean": _rounded(sum(stalls) / len(stalls)),
            "stall_longest": _rounded(max(stalls)),
        }
    return figures


def _bad_exits(federation: Federation, codes: list[int]) -> list[str]:
    # Killed by the soak, or the cluster was unreachable at the start. Anything else is a worker that gave up.
    unexpected = {code: count for code, count in federation.exits.items() if code not in (-signal.SIGKILL, 3)}
    if not unexpected and not any(codes):
        return []
    said = federation.log.read_text(errors="replace")
    # A library's text before it aborts, or a traceback, is not a log line.
    other = "".join(line for line in said.splitlines(keepends=True) if not line[:1].isdigit())
    return [f"processes ended with {unexpected}, at the end {codes}: {other[-4000:]}{said[-2000:]}"]


def _exit(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else str(code)


def _rounded(value: Any) -> Any:
    return round(value, 1) if isinstance(value, float) else value
