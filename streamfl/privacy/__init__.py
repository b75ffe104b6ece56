"""Differential privacy that systems share: keyed noise, what it costs, and the ledger of what was released of whom."""
