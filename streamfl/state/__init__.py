"""State that a role remembers in a changelog: parts, long values, settings that it was made with, times."""
