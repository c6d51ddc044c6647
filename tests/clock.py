"""What a test measures by the clock, and nothing else, may be tried again: docs/decisions/0028-measured-again.md."""


class TooSlow(AssertionError):
    """Slower than promised, by a clock that also counts what the machine stood still."""


def within(found: float, most: float) -> None:
    """Raises TooSlow where what was measured is over what was promised."""
    if not found <= most:
        raise TooSlow(f"{found:.4g}, expected {most:.4g} at most")
