"""FNO models: architecture, native checkpoints, PDE solvers, training and evaluation."""
