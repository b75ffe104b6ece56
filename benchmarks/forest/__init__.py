"""A forest that a server grows from its clients' small counts, while the samples stay with the clients: a
study, and no role."""
