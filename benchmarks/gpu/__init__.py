"""How fast on a GPU: layers, whole models, a map over batch and channels. `python -m benchmarks.gpu`."""
