"""Parts that roles of several systems are built from."""
