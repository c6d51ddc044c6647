"""Benchmarks against the libraries and servers in common use: `python -m benchmarks`."""
