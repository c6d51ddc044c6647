"""Bytes to arrays and back: every wire format, without HTTP, without the engine."""
