"""How fast it is, against what people use today. `python -m benchmarks` runs all of it."""
