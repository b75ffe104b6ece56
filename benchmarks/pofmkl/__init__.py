"""Benchmarks of POF-MKL."""
