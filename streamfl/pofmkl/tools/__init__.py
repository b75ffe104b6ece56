"""POF-MKL's tools: simulation, demo, comparison, report and dashboards. No worker imports it."""
