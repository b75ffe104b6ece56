"""The parts of the bus in one SQLite file: the file, its topics and logs, the members of its groups, their
sessions."""
