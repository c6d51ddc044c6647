"""turbofno against the servers that a user would pick instead: `python -m benchmarks.serving`, `make bench-serving`."""
