"""POF-MKL's laboratory: simulation, demo, comparison, report and dashboards. No worker imports it."""
