"""Coordinator, guest and host, and the order of a training's steps."""
