"""Laws that every role and every bus obeys, as suites that a new one runs unchanged; federations under faults; wrong messages.

They need pytest and Hypothesis, which ``streamfl[dev]`` brings.
"""

import pytest

# Without this a law that fails says AssertionError and nothing else.
pytest.register_assert_rewrite(*(f"streamfl.testing.{name}" for name in ("bound_laws", "bus_laws", "clock_laws", "role_laws")))
