"""Entry point of the command `turbofno` and of `python -m turbofno.service`."""

import gc
import sys

from turbofno.service.version import VERSION


def main() -> int:
    """Run the command line; without the service's dependencies, one line on stderr and exit status 2."""
    if sys.argv[1:] == ["--version"]:  # also where only the client is installed
        sys.stdout.write(f"turbofno {VERSION}\n")
        return 0
    try:
        from turbofno.service.cli import main as run
        from turbofno.service.system import keep_freed_memory
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"turbofno: the service is not installed (no module {error.name!r}): run `pip install '.[serve]'` in a checkout "
            "of turbofno\n"
        )
        return 2
    keep_freed_memory()
    try:
        return run()
    finally:
        # Else Python would traverse PyTorch's objects once more at its end, which takes half a second.
        gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
