"""``make fuzz``: send many malformed messages and count the results. Exit code 1 if one was more than
refused."""

from __future__ import annotations

import argparse
import sys

from streamfl.testing.fuzz.campaign import print_report, run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of the names of targets")
    chosen = parser.parse_args()
    try:
        report = run(chosen.messages, chosen.seed, chosen.only)
    except ValueError as error:
        parser.error(f"--only: {error}")
    print_report(report, chosen.seed)
    sys.exit(bool(report.defects))
