"""A party: its table, frozen windows, and answers."""
