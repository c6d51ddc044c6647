"""Served from a GPU: how much of what the compiled model computes arrives over HTTP, and what is in the way."""
