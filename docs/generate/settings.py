"""Write reference/settings.md from the fields of `Settings`."""

import re
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import mkdocs_gen_files

from turbofno.service.settings import Settings, env_name

_INTRODUCTION = """\
---
hide: [toc]
---
# Settings

Every setting is an environment variable and an option of `turbofno serve`: `TURBOFNO_MAX_BATCH_SIZE=64` and
`--max-batch-size 64` are the same. An option wins over the variable. `turbofno config` prints the values in force.

| variable | type | default | meaning |
| --- | --- | --- | --- |
"""
_MIB = 1024 * 1024


def type_text(annotation: Any) -> str:
    """A field's type in words, with its bounds."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin is Annotated:
        return type_text(arguments[0]) + bounds(arguments[1:])
    if origin in (Union, types.UnionType):
        return type_text(next(part for part in arguments if part is not type(None)))
    names = {
        bool: "`true`, `false`",
        int: "integer",
        float: "number",
        Path: "path",
        tuple: "comma-separated",
    }
    return names.get(origin or annotation, "text")


def bounds(metadata: Iterable[Any]) -> str:
    """The limits of a value, as pydantic checks them."""
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    found = [
        f"{sign} {limit}"
        for entry in metadata
        for attribute, sign in signs.items()
        if (limit := getattr(entry, attribute, None)) is not None
    ]
    return f" {', '.join(found)}" if found else ""


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


with mkdocs_gen_files.open("reference/settings.md", "w") as page:
    page.write(_INTRODUCTION)
    for name, field in Settings.model_fields.items():
        meaning = re.sub(r"([|\[*])", r"\\\1", field.description or "")
        page.write(
            f'| <span id="{name}"></span>`{env_name(name)}` | {type_text(field.annotation)}{bounds(field.metadata)} '
            f"| {default_text(name)} | {meaning} |\n"
        )
