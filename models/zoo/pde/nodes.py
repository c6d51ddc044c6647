"""Fields on nested grids of nodes, boundary included."""

from torch import Tensor

from turbofno.models.zoo.pde.checks import check_at_least


def subsample(field: Tensor, n: int, *, dimensions: int) -> Tensor:
    """Every s-th node of the last `dimensions` axes of `field` [..., m, ..., m], s = (m - 1) / (n - 1): [..., n, ..., n].

    The boundary is kept: 421 -> 141 takes every 3rd node, 421 -> 85 every 5th. Raises ValueError if n - 1 does not
    divide m - 1.
    """
    check_at_least(n, 2, "n")
    m = field.shape[-1]
    if (m - 1) % (n - 1) != 0:
        nested = [count for count in range(2, m + 1) if (m - 1) % (count - 1) == 0]
        nearest = min(nested, key=lambda count: abs(count - n))
        raise ValueError(
            f"cannot take {n} of {m} nodes per axis; expected a number that is 1 more than a divisor of {m - 1}; the "
            f"nearest is {nearest}"
        )
    stride = (m - 1) // (n - 1)
    for axis in range(-dimensions, 0):
        field = field.movedim(axis, -1)[..., ::stride].movedim(-1, axis)
    return field
