"""Whole federations in one process: the real roles and the real worker loop on the memory bus."""
