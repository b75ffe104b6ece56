"""VAFL's laboratory: simulation, demo, report and dashboards. No worker imports it."""
