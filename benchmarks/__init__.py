"""How fast and how large streamfl is, as ratios within one run: ``python -m benchmarks``, or ``make bench``.

Absolute figures belong to the machine; a ratio compares two programs that shared it in the same minute.
"""

import os

# One thread for the matrix products on both sides of every ratio: what a worker that shares its machine has.
# NumPy reads these when it loads, so they are set before any module of this package imports it.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
