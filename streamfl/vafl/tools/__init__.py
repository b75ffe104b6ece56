"""VAFL's tools: simulation, demo, report and dashboards. No worker imports it."""
