"""Output of commands on a terminal, and their progress."""
