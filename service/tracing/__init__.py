"""OpenTelemetry spans of a request's way through HTTP, queue, batch and compute; imported only when asked for."""
