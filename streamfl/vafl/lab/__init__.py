"""VAFL's laboratory: simulation, demo, faults and wrong messages. No worker imports it."""
