"""turbofno against other model servers: `python -m benchmarks.serving`, `make bench-serving`."""
