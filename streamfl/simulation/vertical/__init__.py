"""What vertical systems share to run a whole federation in one process: members, virtual time, a table,
figures, the command."""
