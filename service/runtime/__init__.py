"""Models in memory: loading, warm-up, execution and replacement."""
