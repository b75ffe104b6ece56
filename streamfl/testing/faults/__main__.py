"""``python -m streamfl.testing.faults``: run seeds and print the results."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from threadpoolctl import threadpool_limits

from streamfl.runtime.log import configure
from streamfl.terminal.console import print_text
from streamfl.terminal.exit_codes import ExitCode
from streamfl.testing.faults.buses import CLUSTERS
from streamfl.testing.faults.fault_rates import DURING_WORK, FAULTS
from streamfl.testing.faults.systems import fault_simulations


def main() -> int:
    """0 if all checks hold, else :attr:`ExitCode.CHECK_FAILED`."""
    parser = argparse.ArgumentParser(prog="python -m streamfl.testing.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the scenario to run, or the first of --seeds")
    parser.add_argument("--seeds", type=int, default=1, help="so many, one after another")
    simulations = fault_simulations()
    parser.add_argument("--system", choices=simulations, help="of this system only; left out: of each")
    parser.add_argument("--bus", choices=CLUSTERS, default="memory", help="that misbehaves (memory)")
    parser.add_argument(
        "--liveness", action="store_true", help="with a fault that stays, on the bus in memory"
    )
    parser.add_argument(
        "--hashes", action="store_true", help="print each run's hash; a change that changes nothing keeps all"
    )
    parser.add_argument("--transcript", action="store_true", help="print what happened, line by line")
    chosen = parser.parse_args()
    if chosen.liveness and chosen.bus != "memory":
        parser.error("--liveness is of the bus in memory")
    configure("error")
    began = time.perf_counter()
    faults: Counter[str] = Counter()
    failed = 0
    systems = [chosen.system] if chosen.system else list(simulations)
    if chosen.liveness:
        systems = [name for name in systems if simulations[name].simulate_liveness is not None]
        if not systems:
            parser.error(f"--liveness: {chosen.system} has no scenario with a fault that stays")
    runs = [(seed, system) for seed in range(chosen.seed, chosen.seed + chosen.seeds) for system in systems]
    for seed, system in runs:
        simulation = simulations[system]
        simulate = simulation.simulate_liveness if chosen.liveness else simulation.simulate
        assert simulate is not None
        verdict = simulate(seed, chosen.bus)
        faults += verdict.faults
        if chosen.transcript:
            print_text("\n".join(verdict.lines))
        if chosen.hashes:
            print_text(f"{system} {seed} {verdict.hash}")
        if chosen.seeds == 1:
            print_text(f"{system}, seed {seed}: {verdict.description}")
            print_text(
                f"history of {len(verdict.lines)} lines and {verdict.seconds:.1f} virtual seconds, hash "
                f"{verdict.hash}"
            )
        if verdict.failure is not None:
            failed += 1
            on = " LIVENESS=1" if chosen.liveness else "" if chosen.bus == "memory" else f" BUS={chosen.bus}"
            print_text(f"FAILED  make simulate SYSTEM={system} SEED={seed}{on}  # {verdict.failure}")
        elif chosen.seeds == 1:
            print_text("all checks hold")
    print_text(
        ", ".join(
            f"{kind}: {faults[kind]}" for kind in (*FAULTS, DURING_WORK) if faults[kind] or chosen.seeds > 1
        )
    )
    if chosen.seeds > 1:
        print_text(
            f"{len(runs) - failed} of {len(runs)} federations hold, {time.perf_counter() - began:.0f} s"
        )
    return ExitCode.CHECK_FAILED if failed else 0


if __name__ == "__main__":
    with threadpool_limits(1):
        sys.exit(main())
