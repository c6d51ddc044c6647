"""Runs `turbofno import` in a test."""

from __future__ import annotations

from pathlib import Path

from turbofno.service import cli


def run(repository: Path, path: Path, *options: str, name: str = "model") -> int:
    return cli.main(
        ["import", str(path), "--name", name, "--model-repository", str(repository), *options]
    )


def left_over(repository: Path) -> list[str]:
    return sorted(path.name for path in repository.glob("*")) if repository.exists() else []
