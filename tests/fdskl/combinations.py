"""What each worker of FDSKL could combine of the partial sums that it receives."""

from __future__ import annotations

from typing import Literal

import numpy as np

from streamfl.fdskl.sums.topology import Aggregation


def unmasked_combinations(
    worker: int,
    mask: Literal["one-time", "paper", "none"],
    first: Aggregation,
    second: Aggregation | None = None,
    owner: int | None = None,
) -> int:
    """How many independent unmasked sums of others' parts a worker can make from all that it receives for one
    feature.

    rank(all it receives) - rank(the masks in it), over the columns (o, masks) of others: the worker knows its
    own parts and masks. One at the active party is the answer of the round.

    worker: its number.
    mask: one-time: each pair's, which one adds and the other subtracts. paper: b_p of each, in T1 and in T2.
    none.
    first: T1.
    second: T2, where there is one.
    owner: p' of a T2. Its b_p stays in the answer as the feature's phase, so at the root it is no mask.
    """
    parties = len(first.parent)
    pairs = [(one, two) for two in range(parties) for one in range(two)] if mask == "one-time" else []
    single = list(range(parties)) if mask == "paper" else []
    rows = []
    for tree, parts in ((first, 1), (second, 0)):
        for child in () if tree is None else tree.children[worker]:
            of = tree.below(child)
            row = [parts * (one in of) for one in range(parties)]
            row += [parts * ((one in of) - (two in of)) * (worker not in (one, two)) for one, two in pairs]
            row += [
                int(one in of and one != worker and not (worker == first.root and one == owner))
                for one in single
            ]
            rows.append(row)
    heard = np.array(rows, np.float64).reshape(len(rows), parties + len(pairs) + len(single))
    return _rank(heard) - _rank(heard[:, parties:])


def _rank(rows: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> int:
    return int(np.linalg.matrix_rank(rows)) if rows.size else 0
