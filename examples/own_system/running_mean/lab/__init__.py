"""The laboratory: simulation, demo, faults and wrong messages. No worker imports it."""
