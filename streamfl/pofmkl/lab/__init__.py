"""POF-MKL's laboratory: simulation, demo, comparison, faults and wrong messages. No worker imports it."""
