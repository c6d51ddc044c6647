"""Write reference/http.md from the OpenAPI document that the service publishes at /openapi.json."""

import json
from http import HTTPStatus
from itertools import groupby
from typing import Any

import mkdocs_gen_files

from turbofno.service.app import create_app
from turbofno.service.settings import Settings

_INTRODUCTION = """\
# HTTP routes

The service publishes this as an OpenAPI document at `/openapi.json`, and as pages to try at `/docs`.
`/v1` is turbofno's own interface; its errors are problem documents ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)).
`/v2` is the Open Inference Protocol with binary tensors. The streams of rollouts are described in
[Rollouts](../how-to/rollouts.md#streams), gradients in [Gradients](../how-to/gradients.md).

Any route may also answer 403, 415 or 421 because of [its headers](../how-to/secure.md#web-pages-and-host-names), and 408,
431 or 503 because of [limits of connections and headers](../how-to/tune.md#refusals-and-limits).
"""
_OF_ONE_VERSION = "/versions/{version}"
_KEPT_NUMBERS = 4


def shortened(value: Any) -> Any:
    """An example with the first numbers of its arrays only."""
    if isinstance(value, dict):
        return {key: shortened(entry) for key, entry in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], int | float):
            return value[:_KEPT_NUMBERS]
        return [shortened(entry) for entry in value[:2]]
    return value


def text(value: str) -> str:
    """A description that fits into a cell of a table."""
    return " ".join(value.split()).replace("|", "\\|")


def parameters(operation: dict[str, Any]) -> str:
    """The table of an operation's parameters."""
    found = operation.get("parameters", [])
    if not found:
        return ""
    rows = [
        f"| `{entry['name']}` | {entry['in']} | {entry['schema'].get('type', '')} "
        f"| {text(entry.get('description', ''))}{'' if entry.get('required') else ' (optional)'} |"
        for entry in found
    ]
    return "\n".join(["| parameter | in | type | |", "| --- | --- | --- | --- |", *rows]) + "\n\n"


def body(operation: dict[str, Any]) -> str:
    """The forms of an operation's body, and an example in JSON."""
    content = operation.get("requestBody", {}).get("content", {})
    if not content:
        return ""
    written = f"Body: {', '.join(f'`{form}`' for form in content)}.\n\n"
    for example in content.get("application/json", {}).get("examples", {}).values():
        summary = text(example.get("summary", "JSON"))
        shown = json.dumps(shortened(example["value"]), indent=2)
        written += f'??? example "{summary} (arrays shortened)"\n\n'
        written += f"    ```json\n{indented(shown)}\n    ```\n\n"
        break
    return written


def indented(block: str) -> str:
    return "\n".join(f"    {line}" for line in block.splitlines())


def answers(operation: dict[str, Any]) -> str:
    """The statuses of an operation: what succeeds, with its forms and headers, and what fails."""
    written, failures = "", []
    for status, answer in sorted(operation["responses"].items()):
        if int(status) >= 400:
            failures.append(f"{status} {HTTPStatus(int(status)).phrase}")
            continue
        forms = ", ".join(f"`{form}`" for form in answer.get("content", {}))
        written += f"Answer {status}{': ' + forms if forms else ''}.\n\n"
        headers = answer.get("headers", {})
        if headers:
            written += "| header of the answer | |\n| --- | --- |\n"
            written += "".join(
                f"| `{name}` | {text(header.get('description', ''))} |\n"
                for name, header in headers.items()
            )
            written += "\n"
    if failures:
        written += f"Errors: {', '.join(failures)}.\n\n"
    return written


def operations() -> list[tuple[str, str, str, dict[str, Any]]]:
    """All operations as (tag, method, path, operation), those of a named version left out."""
    # An engine that does nothing: the document does not depend on one, and none is started.
    document = create_app(Settings(ui=True, model_control=True)).openapi()
    return [
        (operation["tags"][0], method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if _OF_ONE_VERSION not in path
    ]


with mkdocs_gen_files.open("reference/http.md", "w") as page:
    page.write(_INTRODUCTION)
    page.write(
        "\nBehind the name of a model `/versions/{version}` asks for one version; otherwise the newest answers. Cards, "
        "samples and solutions are those of the newest.\n"
    )
    for tag, group in groupby(operations(), key=lambda entry: entry[0]):
        page.write(f"\n## {tag[0].upper()}{tag[1:]}\n\n")
        for _, method, path, operation in group:
            page.write(f"### `{method} {path}`\n\n")
            page.write(f"{operation.get('description') or operation['summary'] + '.'}\n\n")
            page.write(parameters(operation) + body(operation) + answers(operation))
