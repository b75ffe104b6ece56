"""Connectors of streamfl: buses, formats and data files, each found through an entry point and never imported
by streamfl."""
