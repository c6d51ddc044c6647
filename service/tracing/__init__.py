"""OpenTelemetry spans of requests, queue, batches and compute; imported only with the setting `tracing`."""
