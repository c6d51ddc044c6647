"""Inference service for trained Fourier neural operators: HTTP, batching, and the models on their device."""
