"""The engine as HTTP sees it, in this process, and what its parts share."""
