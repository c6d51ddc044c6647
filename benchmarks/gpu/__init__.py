"""Benchmarks on a GPU: layers, whole models, a heat map, imported networks. `python -m benchmarks.gpu`."""
