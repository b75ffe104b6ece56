"""The mathematics: what a client learns and predicts with, and the server's steps."""
