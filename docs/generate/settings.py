"""Write reference/settings.md from the fields of `Settings`."""

import types
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import mkdocs_gen_files

from turbofno.service.settings import Settings, env_name

_INTRODUCTION = """\
# Settings

Every setting is an environment variable and an option of `turbofno serve`: `TURBOFNO_MAX_BATCH_SIZE=64` and
`--max-batch-size 64` are the same. An option wins over the variable. `turbofno config` prints the values in force.

| variable | type | default | meaning |
| --- | --- | --- | --- |
"""
_MIB = 1024 * 1024


def type_text(annotation: Any) -> str:
    """A field's type in words."""
    origin = get_origin(annotation)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation))
    if origin is types.UnionType:
        inner = [part for part in get_args(annotation) if part is not type(None)]
        return type_text(inner[0])
    if origin is tuple:
        return "comma-separated names"
    if origin is dict:
        return "text"
    return {bool: "`true`, `false`", int: "integer", float: "number", Path: "path", str: "text"}[
        annotation
    ]


def default_text(name: str) -> str:
    """A field's default as it would be written in the environment."""
    field = Settings.model_fields[name]
    if field.default_factory is not None:
        return "see meaning"
    value = field.default
    if value is None or value in ((), {}):
        return "unset"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, Path):
        return "the models that come with turbofno"
    if name.endswith("_bytes"):
        return f"`{value}` ({value // _MIB} MiB)" if value >= _MIB else f"`{value}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def bounds(name: str) -> str:
    """The limits of a field's value, as pydantic checks them."""
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    found = [
        f"{sign} {limit}"
        for entry in Settings.model_fields[name].metadata
        for attribute, sign in signs.items()
        if (limit := getattr(entry, attribute, None)) is not None
    ]
    return f" {', '.join(found)}" if found else ""


with mkdocs_gen_files.open("reference/settings.md", "w") as page:
    page.write(_INTRODUCTION)
    for name, field in Settings.model_fields.items():
        meaning = (field.description or "").replace("|", "\\|")
        page.write(
            f'| <span id="{name}"></span>`{env_name(name)}` | {type_text(field.annotation)}{bounds(name)} '
            f"| {default_text(name)} | {meaning} |\n"
        )
