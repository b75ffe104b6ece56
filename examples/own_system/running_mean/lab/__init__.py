"""The laboratory: simulation, demo, replay and dashboard. No worker imports it."""
