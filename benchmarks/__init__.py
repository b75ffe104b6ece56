"""How fast and how large streamfl is, as ratios within one run: ``python -m benchmarks``, or ``make bench``.

Absolute figures belong to the machine; a ratio compares two programs that shared it in the same minute.
"""
