"""HTTP: routes, bodies, errors and what wraps them."""
