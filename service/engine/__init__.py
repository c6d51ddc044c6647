"""The Engine interface, the engine in this process, and types that the engine's parts share."""
