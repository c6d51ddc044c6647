"""The inference service: HTTP in, batched spectral operators, HTTP out."""
