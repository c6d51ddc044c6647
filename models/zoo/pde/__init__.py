"""Reference solvers for the training and held-out data of the zoo models."""
