"""Write reference/config.md from `ModelConfig`, the schema of a model's config.json."""

import inspect
import json
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import mkdocs_gen_files
from pydantic import BaseModel

from turbofno.models.core.config import ModelConfig

_INTRODUCTION = """\
# config.json

A model is a folder with `config.json` and `model.safetensors`, or a folder of such folders named by version
(`NAME/1`, `NAME/2`). `config.json` holds everything that determines the function and what its fields mean; unknown
members are errors. [`turbofno import`](import.md) writes one for a checkpoint of another library.
"""


def parts(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, without None; otherwise the type alone."""
    if get_origin(annotation) is Annotated:
        return parts(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(
            part
            for entry in get_args(annotation)
            if entry is not type(None)
            for part in parts(entry)
        )
    return (annotation,)


def type_text(annotation: Any) -> str:
    """A type as JSON has it, with links to the objects described below."""
    written = []
    for part in parts(annotation):
        if get_origin(part) is Literal:
            written.append(", ".join(f'`"{choice}"`' for choice in get_args(part)))
        elif get_origin(part) is tuple:
            written.append(f"array of {type_text(get_args(part)[0])}")
        elif get_origin(part) is dict:
            written.append("object")
        elif isinstance(part, type) and issubclass(part, BaseModel):
            written.append(f"[{part.__name__}](#{part.__name__.lower()})")
        else:
            written.append(
                {str: "string", int: "integer", float: "number", bool: "boolean"}.get(part, "value")
            )
    return " or ".join(written)


def objects(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """The model and all that it contains, each once, in the order in which they are met."""
    seen: dict[type[BaseModel], None] = {model: None}
    waiting = [model]
    while waiting:
        for field in waiting.pop(0).model_fields.values():
            for part in contained(field.annotation):
                if part not in seen:
                    seen[part] = None
                    waiting.append(part)
    return iter(seen)


def contained(annotation: Any) -> Iterator[type[BaseModel]]:
    for part in parts(annotation):
        if isinstance(part, type) and issubclass(part, BaseModel):
            yield part
        elif get_args(part) and get_origin(part) is not Literal:
            for inner in get_args(part):
                yield from contained(inner)


def default_text(field: Any) -> str:
    """The default as JSON, or that there must be a value."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "absent"
    return f"`{json.dumps(value)}`"


with mkdocs_gen_files.open("reference/config.md", "w") as page:
    page.write(_INTRODUCTION)
    for model in objects(ModelConfig):
        page.write(f"\n## {model.__name__}\n\n")
        summary, _, rest = (inspect.getdoc(model) or "").partition("\n\n")
        page.write(summary + "\n\n")
        if rest:
            page.write(f"```text\n{rest}\n```\n\n")
        page.write("| member | type | default | |\n| --- | --- | --- | --- |\n")
        for name, field in model.model_fields.items():
            page.write(
                f"| `{name}` | {type_text(field.annotation)} | {default_text(field)} "
                f"| {field.description or ''} |\n"
            )
