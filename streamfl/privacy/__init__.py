"""Differential privacy that systems share: keyed noise, its cost, and the ledger of each entity's
releases."""
