"""Time limits of tests. `make test` runs a test again if it fails with TooSlow, and for no other reason."""


class TooSlow(AssertionError):
    """A measured time is over its limit, possibly because the machine was busy."""


def within(found: float, most: float) -> None:
    """Raise TooSlow if `found` is above `most`."""
    if not found <= most:
        raise TooSlow(f"{found:.4g}, expected {most:.4g} at most")
