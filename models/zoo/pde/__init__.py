"""Reference solvers that make the training and held-out data of the zoo models."""
