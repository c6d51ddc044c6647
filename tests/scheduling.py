"""How xdist shares the tests among its workers: what takes long comes first, so that no worker ends alone.

A worker runs whole files, for the servers that their tests share, and whole folders whose files share a server.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    import pytest

TOGETHER = ("tests/deploy", "tests/e2e", "tests/ui")
"""Folders that run on one worker."""
LONGEST = (
    "tests/e2e",
    "tests/ui",
    "tests/test_packaging.py",
    "tests/deploy",
    "tests/service/test_system.py",
)
"""Folders and files that take longest."""


def rank(item: pytest.Item) -> int:
    """The place of a test among all: those of LONGEST in its order, then the others."""
    file = PurePath(item.nodeid.partition("::")[0])
    return next((i for i, one in enumerate(LONGEST) if file.is_relative_to(one)), len(LONGEST))


class Scheduling(LoadFileScheduling):
    """As `--dist loadfile`, with TOGETHER, in the order of the tests."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        # By default what has most tests comes first, and servers with few tests come last.
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        file = PurePath(nodeid.partition("::")[0])
        return next((one for one in TOGETHER if file.is_relative_to(one)), str(file))
