"""`turbofno verify`: compare a checkpoint with the solver of its PDE on fresh inputs, in error and time."""
