"""Every case of a late EndTxn against `streamfl run`: ``cd tests && python -m pofmkl.late_end_txn [NODES
…]``.

By default of 1 and 3 nodes. Ends with 1 if anything was lost or doubled, or stuck.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import product
from pathlib import Path

from end_txn_proxy import Fault
from pofmkl.late_end_txn.cases import Case, cluster, run

SCHEMES = ("kafka", "kafka+librdkafka")


def cases(nodes: int) -> list[Case]:
    """Those of a cluster of so many nodes."""
    broken, late = Fault.KEEP_AND_BREAK, (Fault.KEEP, Fault.KEEP_AND_BREAK)
    found = [
        Case(scheme, fault, committed) for scheme, fault, committed in product(SCHEMES, Fault, (True, False))
    ]
    found += [Case(scheme, broken, kill=kill) for scheme, kill in product(SCHEMES, ("caught", "answered"))]
    if nodes > 1:
        found = [Case(scheme, fault, slow=True) for scheme, fault in product(SCHEMES, late)]
        found += [
            Case(scheme, broken, slow=True, kill=kill)
            for scheme, kill in product(SCHEMES, ("caught", "answered"))
        ]
        found += [Case(scheme, broken, committed=False, slow=True) for scheme in SCHEMES]
    return found


def main(arguments: list[str]) -> int:
    """The table on stdout."""
    bad = 0
    print("| nodes | case | lost | doubled | late EndTxn's answer | sent again | seconds | else |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory(prefix="late-end-txn-") as folder:
        for nodes in map(int, arguments or ("1", "3")):
            with cluster(nodes) as (proxy, address):
                for case in cases(nodes):
                    one = run(case, proxy, address, Path(folder))
                    bad += not one.good
                    other = [*([] if one.caught else ["nothing was caught"]), *one.wrong]
                    other += [f"{one.doubtful} transactions in doubt"] if one.doubtful else []
                    row = (
                        nodes,
                        case,
                        one.lost,
                        one.doubled,
                        one.error,
                        one.sent_again,
                        f"{one.seconds:.0f}",
                        "; ".join(other),
                    )
                    print("|", " | ".join(map(str, row)), "|", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
