"""Laws that every role and every bus obeys, as test suites that a new role or bus runs unchanged; federations
under faults; wrong messages.

They need pytest and Hypothesis, which ``streamfl[dev]`` installs.
"""

import pytest

# Without this a failing law reports AssertionError without the compared values.
pytest.register_assert_rewrite(
    *(f"streamfl.testing.{name}" for name in ("bound_laws", "bus_laws", "clock_laws", "role_laws"))
)
