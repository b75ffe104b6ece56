"""Fuzzing of every system with wrong messages: how they are made, who receives them, and what has to hold."""
