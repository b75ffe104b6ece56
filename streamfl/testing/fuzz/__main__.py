"""``make fuzz``: send many malformed messages and count the results. Exit code 1 if one was more than refused."""

from __future__ import annotations

import argparse
import sys

from streamfl.testing.fuzz.campaign import print_report, run
from streamfl.testing.fuzz.systems import fuzzed_systems

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of the names of targets")
    parser.add_argument("--record", action="store_true", help="record the corpus anew and end")
    chosen = parser.parse_args()
    if chosen.record:
        for system in fuzzed_systems():
            for federation in system.federations:
                system.corpus.write(federation, system.record(federation))
        sys.exit(0)
    report = run(chosen.messages, chosen.seed, chosen.only)
    print_report(report, chosen.seed)
    sys.exit(bool(report.defects))
