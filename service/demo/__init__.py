"""The zoo's samplers and solvers beside the service, in a process of their own."""
