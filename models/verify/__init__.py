"""`turbofno verify`: a checkpoint against the solver of its PDE, on fresh inputs, in error and in time."""
