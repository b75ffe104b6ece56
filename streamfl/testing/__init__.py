"""Laws that every role and every bus obeys, as suites that a new one runs unchanged."""
