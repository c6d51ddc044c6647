"""Admission, queue, batching, scheduling and the device thread."""
