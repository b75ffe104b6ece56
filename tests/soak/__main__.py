"""``make soak``: a federation on a real cluster, with faults by a seed. Exit code 1 if anything is lost,
doubled or wrong."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from soak.campaign import print_report, run
from soak.changed_topics import run_with_changed_topics
from soak.subject import Plan, find_soaked

from streamfl.contract.role import ConfigurationError

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument(
        "--system", help="an installed system with a file tests/<system>/soak.py; left out: the first"
    )
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="of faults; start, outage and verdict come on top"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scheme", choices=("kafka", "kafka+librdkafka"), default="kafka")
    parser.add_argument("--mode", help="how it learns, as the system calls it; left out: its first mode")
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=3, help="brokers of the cluster")
    parser.add_argument("--rate", type=float, default=50.0, help="samples a second")
    parser.add_argument("--keys", action="store_true", help="members have keys")
    parser.add_argument(
        "--outage",
        type=float,
        default=120.0,
        help="seconds that the whole cluster is away at the end; 0: none",
    )
    parser.add_argument(
        "--kinds", default=None, help="only these kinds of faults, in this order, separated by commas"
    )
    changed = "no faults: records are deleted unread, and a topic is made again"
    parser.add_argument("--changed-topics", action="store_true", help=changed)
    parser.add_argument("--report", type=Path, default=Path("soak.json"))
    chosen = parser.parse_args()
    try:
        name, system = find_soaked(chosen.system)
    except ConfigurationError as error:
        parser.error(str(error))
    if chosen.mode not in (None, *system.modes):
        parser.error(f"--mode {chosen.mode}: {name} knows {', '.join(system.modes)}")
    plan = Plan(
        chosen.mode or system.modes[0], chosen.scheme, chosen.nodes, chosen.seed, chosen.rate, chosen.keys
    )
    console = Console(width=132)
    kinds = (
        None if chosen.kinds is None else [kind.strip() for kind in chosen.kinds.split(",") if kind.strip()]
    )
    if chosen.changed_topics:
        report = run_with_changed_topics(name, plan, console)
        console.print_json(data=report)
    else:
        report = run(name, plan, 60 * chosen.minutes, chosen.outage, kinds, console)
        print_report(report, console)
    chosen.report.write_text(json.dumps(report, indent=2) + "\n")
    sys.exit(bool(report["wrong"]))
