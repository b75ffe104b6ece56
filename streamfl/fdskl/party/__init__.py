"""The worker: what a party and an active party keep in a partition, and their messages."""
