"""Write reference/cli.md from the help of `turbofno` and its commands."""

import argparse
import os

import mkdocs_gen_files

from turbofno.service import cli

_INTRODUCTION = """\
# Command line

Exit status: 0 for success, 1 for failure, 2 for wrong arguments. The options of `turbofno serve` are the
[settings](settings.md).
"""
_SETTINGS_ONLY = ("serve", "config")

os.environ["COLUMNS"] = "100"
os.environ["NO_COLOR"] = "1"


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The subcommands of a parser, by name."""
    (action,) = (
        entry for entry in parser._actions if isinstance(entry, argparse._SubParsersAction)
    )
    return dict(action.choices)


with mkdocs_gen_files.open("reference/cli.md", "w") as page:
    parser = cli._parser()
    page.write(f"{_INTRODUCTION}\n```text\n{parser.format_help()}```\n")
    for name, command in commands(parser).items():
        page.write(f"\n## turbofno {name}\n\n")
        if name in _SETTINGS_ONLY:
            page.write(f"{command.description} Options: the [settings](settings.md).\n")
        else:
            page.write(f"```text\n{command.format_help()}```\n")
