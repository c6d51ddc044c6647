"""Throughput and latency over HTTP on a GPU, and the limits of each part: model, pipeline, engine, sockets."""
