"""What people call: simulation, demo, replay and dashboard. No worker imports it."""
