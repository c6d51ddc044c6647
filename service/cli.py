"""The command line: serve, predict, import, verify, models, config; user errors are one line on stderr."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import httpx
import numpy as np
from pydantic import ValidationError

from turbofno.models.core.config import Channel, GridSpec
from turbofno.models.core.registry import CONFIG_FILE
from turbofno.models.importers import arguments as import_arguments
from turbofno.models.importers.refusal import printable
from turbofno.models.verify import arguments as verify_arguments
from turbofno.service import model_limits
from turbofno.service.banner import greet
from turbofno.service.errors import ServiceError
from turbofno.service.settings import (
    API_KEY_VARIABLE,
    Settings,
    env_name,
    http_url,
    misspelt_variables,
)
from turbofno.service.system import open_standard_streams
from turbofno.service.version import VERSION
from turbofno_client import Client, TurboFNOError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pydantic_core import ErrorDetails

_Signature = tuple[Sequence[Channel], Sequence[Channel], GridSpec]

_FAILED, _USAGE, _INTERRUPTED = 1, 2, 130


class _UsageError(Exception):
    """Unusable arguments or files; the message says how to mend them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    open_standard_streams()
    arguments = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except BrokenPipeError:
        # The reader of the output has enough, as in `turbofno config | head`. Python must not flush it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except (
        _UsageError, TurboFNOError, ServiceError, ValueError, OSError, httpx.InvalidURL,
    ) as error:  # fmt: skip
        refused = isinstance(error, TurboFNOError) and error.status == HTTPStatus.UNAUTHORIZED
        hint = f"; this command sends the one in {API_KEY_VARIABLE}" if refused else ""
        # The error may quote the files of a model.
        sys.stderr.write(printable(f"turbofno: {error}{hint}") + "\n")
        return _USAGE if isinstance(error, _UsageError) else _FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="turbofno", description="Inference service for trained Fourier neural operators."
    )
    parser.add_argument("--version", action="version", version=f"turbofno {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser(
        "serve",
        help="serve the models of a repository over HTTP",
        description="Serve the models of a repository over HTTP until SIGTERM or Ctrl-C. "
        "Each option can also be set by the environment variable in parentheses.",
    )
    _add_settings(serve)
    serve.set_defaults(command=_serve)

    predict = commands.add_parser(
        "predict",
        help="run one model on a .npy file",
        description="Run one model on a field [channels, *grid], a batch [n, channels, *grid] or, for a model with "
        "one input channel, a field [*grid].",
    )
    predict.add_argument("model", metavar="MODEL", help="name of the model")
    predict.add_argument("input", metavar="INPUT.npy", type=Path, help="the field or batch")
    predict.add_argument(
        "-o",
        "--output",
        metavar="OUT.npy",
        type=Path,
        required=True,
        help="file for the prediction",
    )
    predict.add_argument("--version", metavar="V", help="version of the model (default: newest)")
    predict.add_argument(
        "--output-grid",
        type=_grid,
        metavar="N[,N..]",
        help="points on each axis of the prediction; the model then runs on its training grid "
        "(default: the grid of the input)",
    )
    predict.add_argument(
        "--plot",
        metavar="OUT.png",
        type=Path,
        help="also plot the first field beside its prediction (needs matplotlib)",
    )
    where = predict.add_mutually_exclusive_group()
    _add_url(where)
    where.add_argument(
        "--local",
        action="store_true",
        help=f"run the checkpoint in {env_name('model_repository')} in this process, without a server",
    )
    predict.set_defaults(command=_predict)

    imports = commands.add_parser(
        "import",
        help="convert a checkpoint of another library",
        description="Convert a checkpoint of another library into a model that can be served. No code in the file is "
        "executed. Formats and options: docs/reference/import.md.",
    )
    # As in Python 3.14: means like -1,2 and -1e-3 are no options. Before, only -1 and -1.5 are taken for numbers.
    imports._negative_number_matcher = re.compile(r"-\.?\d")
    import_arguments.add_arguments(imports)
    imports.add_argument(
        "--model-repository",
        "--repository",
        dest="repository",
        metavar="DIR",
        type=Path,
        help=f"folder for the model; needed unless {env_name('model_repository')} is set",
    )
    imports.set_defaults(command=_import)

    verify = commands.add_parser(
        "verify",
        help="compare a model with the solver of its PDE",
        description="Run model and solver on fresh inputs; print errors and the speed-up at equal error. "
        "The exit status is 1 if the model is clearly worse than its card states. Method: docs/how-to/verify.md.",
    )
    verify_arguments.add_arguments(verify)
    verify.add_argument(
        "--model-repository",
        "--repository",
        dest="repository",
        metavar="DIR",
        type=Path,
        help=f"repository that holds NAME (default: from {env_name('model_repository')})",
    )
    verify.add_argument(
        "--device",
        dest="setting_device",
        metavar="DEVICE",
        help=f"auto, cpu, cuda, cuda:1 ({env_name('device')})",
    )
    verify.set_defaults(command=_verify)

    models = commands.add_parser("models", help="list the models of a server")
    _add_url(models)
    models.set_defaults(command=_models)

    config = commands.add_parser(
        "config",
        help="print every setting",
        description="Print every setting with its value and description, as an environment file.",
    )
    _add_settings(config)
    config.set_defaults(command=_config)
    return parser


def _grid(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a grid: expected the number of points on each axis, for example 128,128"
        ) from None


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """Add an option for each field of Settings, which checks the values."""
    for name, field in Settings.model_fields.items():
        parser.add_argument(
            "--" + name.replace("_", "-"),
            dest=f"setting_{name}",
            metavar=_metavar(field.annotation),
            help=f"{field.description} ({env_name(name)})".replace("%", "%%"),
        )


def _metavar(annotation: object) -> str:
    """The placeholder of a setting's value in --help."""
    kinds = {annotation, *get_args(annotation)}
    kinds |= {inner for kind in kinds for inner in get_args(kind)}
    names = {bool: "true|false", Path: "PATH", int: "N", float: "X"}
    return next((name for kind, name in names.items() if kind in kinds), "VALUE")


def _add_url(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--url",
        metavar="URL",
        help=f"address of the server (default: from {env_name('host')} and {env_name('port')}); "
        f"{API_KEY_VARIABLE} holds the API key, if it needs one",
    )


def _settings(arguments: argparse.Namespace) -> Settings:
    given = {
        name: value
        for name in Settings.model_fields
        if (value := getattr(arguments, f"setting_{name}", None)) is not None
    }
    try:
        return Settings(**given)
    except ValidationError as error:
        # A default that is computed from an invalid setting fails too; report only the cause.
        problems = [one for one in error.errors() if one["type"] != "default_factory_not_called"]
        raise _UsageError("; ".join(map(_setting_problem, problems))) from None


def _setting_problem(problem: ErrorDetails) -> str:
    message = problem["msg"].removeprefix("Value error, ")
    if not problem["loc"]:
        return message
    name = str(problem["loc"][0])
    description = Settings.model_fields[name].description
    return f"--{name.replace('_', '-')} ({env_name(name)}): {message}, got {problem['input']!r}. {description}"


def _url(arguments: argparse.Namespace) -> str:
    if arguments.url is not None:
        return str(arguments.url)
    settings = _settings(arguments)
    return http_url(settings.host, settings.port, tls=settings.tls_certificate is not None)


def _serve(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    # A JSON log must contain only JSON.
    for_people = settings.log_format == "console"
    # Slow to import; only this command needs it.
    if settings.frontends:
        from turbofno.service.processes.start import run_processes

        return run_processes(settings, for_people=for_people)
    from turbofno.service.server import run

    return run(settings, on_ready=greet if for_people else None)


def _config(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    for problem in misspelt_variables(os.environ):
        sys.stderr.write(f"turbofno: {problem}\n")
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        origin = "set" if name in settings.model_fields_set else "default"
        sys.stdout.write(f"# {name} ({origin}): {field.description}\n")
        sys.stdout.write(f"# {env_name(name)}=\n" if value is None else _assignment(name, value))
    return 0


def _assignment(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        value = ",".join(value)
    if isinstance(value, dict):
        value = model_limits.to_text(value)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{env_name(name)}={text}\n"


def _import(arguments: argparse.Namespace) -> int:
    repository = arguments.repository
    if repository is None:
        settings = _settings(arguments)
        # The default is a folder of the installed package, which goes with its environment.
        if "model_repository" not in settings.model_fields_set:
            raise _UsageError(
                f"no folder for the model: give --model-repository DIR or set {env_name('model_repository')}"
            )
        repository = settings.model_repository
    # Slow to import; only this command needs it.
    from turbofno.models.importers.command import run

    return run(arguments, repository)


def _verify(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    if arguments.repository is not None:
        settings = settings.model_copy(update={"model_repository": arguments.repository})
    if arguments.out is not None:
        _require_matplotlib("--out")
    # Slow to import; only this command needs it.
    from turbofno.models.verify.command import run
    from turbofno.service.local import find_checkpoint, load_as_served

    name = arguments.model
    folder = Path(name)
    if not (folder / CONFIG_FILE).is_file():
        if len(folder.parts) > 1:
            raise _UsageError(
                f"{folder} is not the folder of a checkpoint: it has no {CONFIG_FILE}; give the name of a model in "
                "--model-repository or the folder of one"
            )
        folder = find_checkpoint(settings.model_repository, name)
    return run(arguments, load_as_served(folder, settings, max_batch=arguments.n))


def _models(arguments: argparse.Namespace) -> int:
    with Client(_url(arguments), retries=0, api_key=os.environ.get(API_KEY_VARIABLE)) as client:
        listing = client.models()
    shown = ("name", "version", "state", "backend", "precision", "execution", "trust")
    rows = [(*(key.upper() for key in shown), "DESCRIPTION")]
    for one in listing:
        about = one["reason"] or one["description"]
        if why := one.get("execution_reason"):
            about += f" ({why})"
        rows.append((*(one.get(key) or "-" for key in shown), about))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        sys.stdout.write(printable("  ".join(cells).rstrip()) + "\n")
    return 0


def _predict(arguments: argparse.Namespace) -> int:
    if arguments.plot is not None:
        _require_matplotlib("--plot")
        _check_picture_format(arguments.plot)
    for path in filter(None, (arguments.output, arguments.plot)):
        if not path.parent.is_dir():
            raise _UsageError(
                f"{path.parent}, the folder of {path.name}, does not exist; create it"
            )
    fields = _read_array(arguments.input)
    grid: tuple[int, ...] | None = arguments.output_grid
    if arguments.local:
        from turbofno.service.local import predict_local

        settings = _settings(arguments)
        local = predict_local(
            settings.model_repository,
            arguments.model,
            fields,
            version=arguments.version,
            device=settings.device,
            output_grid=",".join(map(str, grid)) if grid else None,
        )
        answer, warnings = local.fields, local.warnings
        signature: _Signature | None = (
            local.config.inputs,
            local.config.outputs,
            local.config.grid,
        )
    else:
        with Client(_url(arguments), api_key=os.environ.get(API_KEY_VARIABLE)) as client:
            prediction = client.predict_detailed(
                arguments.model, fields, version=arguments.version, output_grid=grid
            )
            answer, warnings = prediction.fields, prediction.warnings
            signature = None
            if arguments.plot is not None:
                signature = _signature(client.model(arguments.model, version=arguments.version))
    for warning in warnings:
        sys.stderr.write(f"turbofno: warning: {warning}\n")
    # By way of memory, since numpy needs files that have positions: pipes have none.
    written = io.BytesIO()
    np.save(written, answer)
    arguments.output.write_bytes(written.getbuffer())
    sys.stderr.write(f"turbofno: wrote {arguments.output}: float32 {list(answer.shape)}\n")
    if signature is not None and arguments.plot is not None:
        _plot(arguments.plot, fields, answer, signature, title=arguments.model)
    return 0


def _check_picture_format(path: Path) -> None:
    from matplotlib.backend_bases import FigureCanvasBase

    formats = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in formats:
        raise _UsageError(
            f"--plot {path}: the suffix must be one of .{', .'.join(sorted(formats))}"
        )


def _signature(description: dict[str, Any]) -> _Signature:
    return (
        [Channel.model_validate(channel) for channel in description["input"]["channels"]],
        [Channel.model_validate(channel) for channel in description["output"]["channels"]],
        GridSpec.model_validate(description["grid"]),
    )


def _read_array(path: Path) -> NDArray[np.floating[Any]]:
    try:
        array: NDArray[Any] = np.lib.format.read_array(
            io.BytesIO(path.read_bytes()), allow_pickle=False
        )
    except FileNotFoundError:
        raise _UsageError(
            f"there is no file {path}: expected a .npy file with the fields"
        ) from None
    except (ValueError, MemoryError) as error:
        raise _UsageError(
            f"{path} is not a .npy file of numbers: {error}; write it with numpy.save"
        ) from None
    if array.dtype.kind not in "fiub":
        raise _UsageError(f"{path} has dtype {array.dtype}: expected real numbers, such as float32")
    # numpy's longdouble, too: the client converts it.
    with np.errstate(over="ignore"):
        return (
            array if array.dtype.name in ("float16", "float32", "float64") else array.astype("f4")
        )


def _require_matplotlib(option: str) -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise _UsageError(f"{option} needs matplotlib: pip install matplotlib") from None


def _plot(
    path: Path,
    fields: NDArray[np.floating[Any]],
    answer: NDArray[np.float32],
    signature: _Signature,
    *,
    title: str,
) -> None:
    from turbofno.service.plot import save_picture

    inputs, outputs, grid = signature
    rank = len(grid.training)
    save_picture(
        path,
        fields.reshape(-1, len(inputs), *fields.shape[-rank:])[0].astype(np.float32),
        answer.reshape(-1, len(outputs), *answer.shape[-rank:])[0],
        inputs=inputs,
        outputs=outputs,
        grid=grid,
        title=title,
    )
    sys.stderr.write(f"turbofno: wrote {path}\n")
