"""From an admitted request to a finished batch: tickets, admission, batching policy, scheduling, the device thread."""
