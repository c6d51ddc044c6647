"""Entry point of `python -m turbofno.service`."""

import sys

from turbofno.service.cli import main

sys.exit(main())
