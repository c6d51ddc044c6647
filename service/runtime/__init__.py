"""Models in memory: loaded, warm and replaceable."""
