"""Every setting of the service: one frozen class, read from TURBOFNO_* environment variables or given in code."""

from __future__ import annotations

import difflib
import ipaddress
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from turbofno.models.zoo import TRAINED
from turbofno.service.model_limits import ModelLimits, parse

if TYPE_CHECKING:
    from collections.abc import Iterable

ENV_PREFIX = "TURBOFNO_"
API_KEY_VARIABLE = ENV_PREFIX + "API_KEY"
"""Holds the API key that the command line sends; not a setting of the server."""
_OF_OTHERS = {API_KEY_VARIABLE, ENV_PREFIX + "PURE", ENV_PREFIX + "LIBRARY"}
"""Variables that the command line, the build and turbofno_ops read."""
MIB = 1024 * 1024


def env_name(setting: str) -> str:
    """The environment variable of a setting, for error messages."""
    if setting not in Settings.model_fields:
        raise KeyError(f"there is no setting {setting!r}")
    return ENV_PREFIX + setting.upper()


def misspelt_variables(environment: Iterable[str]) -> list[str]:
    """A warning for each environment variable that starts with TURBOFNO_ and is not a setting."""
    lines = []
    for name in sorted(environment):
        setting = name.upper().removeprefix(ENV_PREFIX).lower()
        known = setting in Settings.model_fields or name in _OF_OTHERS
        if name.upper().startswith(ENV_PREFIX) and not known:
            close = difflib.get_close_matches(setting, Settings.model_fields, n=1)
            remedy = (
                f"did you mean {env_name(close[0])}?"
                if close
                else "`turbofno config` lists all settings"
            )
            lines.append(f"{name} is not a setting; {remedy}")
    return lines


def http_url(host: str, port: int, *, tls: bool = False) -> str:
    """The URL at which this machine reaches a server that listens on `host`."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def exposure_warnings(settings: Settings) -> list[str]:
    """A warning for each setting that exposes the server or its secrets to others."""
    return [*_exposed_address(settings), *_exposed_secrets(settings)]


def _exposed_address(settings: Settings) -> list[str]:
    if is_loopback(settings.host):
        return []
    if settings.api_keys_file is None:
        return [
            f"listening on {settings.host}, not loopback, without API keys: anyone who reaches it can use it; "
            f"set {env_name('api_keys_file')}"
        ]
    if settings.tls_certificate is None:
        return [
            f"listening on {settings.host}, not loopback, without TLS: API keys and fields travel unencrypted; "
            f"set {env_name('tls_certificate')}, or put a proxy with TLS in front"
        ]
    return []


def _exposed_secrets(settings: Settings) -> list[str]:
    """A warning for each file of keys that every user of the machine can read."""
    files = {"api_keys_file": settings.api_keys_file, "tls_key": settings.tls_key}
    return [
        f"every user of this machine can read {env_name(setting)}={path}: run chmod o-r on it"
        for setting, path in files.items()
        if path is not None and path.exists() and path.stat().st_mode & stat.S_IROTH
    ]


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a server that listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Settings(BaseSettings):
    """All settings. A request that exceeds a limit gets an error that names the setting's environment variable."""

    model_config = SettingsConfigDict(
        # An empty variable is what a compose file makes of one that is not set.
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
    )

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address to listen on. The default accepts connections from this machine only; 0.0.0.0 accepts all "
        "over IPv4, :: over IPv4 and IPv6.",
    )
    port: int = Field(
        default=8080, ge=0, le=65535, description="TCP port, 0 to 65535; 0 picks a free one."
    )
    model_repository: Path = Field(
        default=TRAINED,
        description="Folder with one subfolder for each model. The default holds the models of this package.",
    )
    models: Annotated[tuple[str, ...] | None, NoDecode] = Field(
        default=None, description="Names of the models to load, comma-separated. Unset loads all."
    )
    ui: bool = Field(
        default_factory=lambda data: is_loopback(data.get("host", "")),
        description="Serve the web page /ui, and the samplers and PDE solvers that it calls. On by default only when "
        "host is a loopback address, because solvers take seconds of CPU time.",
    )
    solver_seconds: PositiveFloat = Field(
        default=20.0,
        description="Time limit for drawing one sample or solving one PDE, in seconds, above 0.",
    )
    api_keys_file: Path | None = Field(
        default=None,
        description="File with one line NAME KEY [fields=N] [bytes=N] for each API key; N limits the fields and bytes "
        "that the key may have in progress. It is read again at SIGHUP; unset needs no key.",
    )
    model_control: bool = Field(
        default_factory=lambda data: data.get("api_keys_file") is not None,
        description="Allow clients to load and unload models. On by default only with API keys.",
    )
    public_metrics: bool = Field(
        default=False, description="With API keys: serve /metrics without a key."
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Host names that requests may address, comma-separated; *.example.com allows all subdomains, "
        "* any name. Always allowed are localhost, IP addresses, the name in host and, unless that is a loopback "
        "address, names that public DNS cannot have.",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Origins whose web pages may call this server, comma-separated, such as https://lab.example.com. "
        "Empty allows only the server's own page.",
    )
    tls_certificate: Path | None = Field(
        default=None,
        description="Certificate chain (PEM), read again at SIGHUP. If set, the server accepts HTTPS only.",
    )
    tls_key: Path | None = Field(
        default=None,
        description="Private key of the certificate (PEM). Unset reads it from the certificate's file.",
    )
    tls_client_ca: Path | None = Field(
        default=None,
        description="Certificate authority (PEM) that must have signed the certificates of clients. "
        "Unset needs no client certificate.",
    )
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="Where models run: auto (CUDA if there is a GPU, else cpu), cpu, cuda or cuda:N.",
    )
    frontends: NonNegativeInt = Field(
        default=0,
        description="Number of HTTP processes that share the port, with one engine process for each device. "
        "0 runs everything in one process.",
    )
    devices: Annotated[tuple[str, ...] | None, NoDecode] = Field(
        default=None,
        description="With frontends: engines that each run every model, comma-separated: the number of a CUDA device "
        "(0,1), or cpu. 0+1 is one engine over both, which cuts large fields into slabs. Unset uses the setting device.",
    )
    shared_memory_bytes: PositiveInt = Field(
        default=512 * MIB,
        description="With frontends: shared memory of each HTTP process for requests and responses in progress, "
        "in bytes, at least four times max_body_bytes. Each GPU's engine page-locks the first 128 MiB of it; if any engine has "
        "several GPUs, all of it.",
    )
    hang_seconds: float = Field(
        default=10.0,
        # A few heartbeats (processes/liveness.py): with less, processes that are well would be killed again and again.
        ge=1.0,
        description="With frontends: a process without a heartbeat for this many seconds is restarted, and so is an "
        "engine of several devices that is this late with fields that it cuts: after ten times the usual time, on a new "
        "grid after a minute and 10 s for each field and step. At least 1.",
    )
    torch_threads: PositiveInt | None = Field(
        default=None,
        le=1024,
        description="CPU threads of PyTorch, 1 to 1024. Unset uses PyTorch's default, on a CPU device one "
        "less than the available cores (of a container: of its quota), which leaves one for HTTP.",
    )

    precision: Literal["model", "fp32", "tf32", "bf16"] = Field(
        default="model",
        description="Arithmetic on a GPU: fp32, tf32, bf16, or model (as each model's config.json states). "
        "A CPU always computes in float32.",
    )
    trust: bool = Field(
        default=True,
        description="Compute trust signals for each prediction: the distance of its input from the training data and "
        "the residual of its PDE, where the model's config.json allows it.",
    )
    require_native: bool = Field(
        default=False,
        description="Refuse to start unless all models run on a GPU through the CUDA kernels.",
    )
    device_memory_fraction: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="Share of the GPU's memory that this process may allocate, above 0 and at most 1. "
        "The default leaves some for CUDA itself and other processes.",
    )

    max_batch_size: PositiveInt = Field(
        default=16,
        description="Maximum number of fields in a device batch. The default suits a CPU; use 64 on a GPU.",
    )
    max_batch_bytes: PositiveInt = Field(
        default=256 * MIB,
        description="Maximum input bytes in a device batch, which bounds its memory. "
        "A single larger field still runs, alone.",
    )
    max_queue_delay_seconds: NonNegativeFloat = Field(
        default=0.0,
        description="How long an idle device waits for more fields before it runs a batch, in seconds. "
        "0 runs at once: batches still form while the device is busy.",
    )
    max_queued_fields_per_model: PositiveInt = Field(
        default=8192,
        description="Maximum number of fields of one model in the queue. At most max_queued_fields.",
    )
    max_queued_fields: PositiveInt = Field(
        default=16384, description="Maximum number of fields of all models in the queue."
    )
    max_fields_per_request: PositiveInt = Field(
        default=4096,
        description="Maximum number of fields in one request. At most max_queued_fields_per_model.",
    )
    max_gradient_bytes: PositiveInt = Field(
        default=2048 * MIB,
        description="Maximum memory for the activations that a batch of gradients keeps, in bytes. "
        "A request whose single field needs more is refused.",
    )
    max_activation_bytes: PositiveInt = Field(
        default=8192 * MIB,
        description="Maximum bytes that all layers of a model together write for one field on its training grid. "
        "A model above it is not loaded, because a hostile config.json could ask for any size.",
    )
    max_rollout_steps: PositiveInt = Field(
        default=10_000, description="Maximum number of steps in one rollout."
    )
    model_limits: Annotated[dict[str, ModelLimits], NoDecode] = Field(
        default={},
        description="Limits for single models: NAME [fields=N] [bytes=N] [batch=N], with a comma between models. "
        "fields and bytes limit what is in progress, batch the fields in a device batch.",
    )
    request_deadline_seconds: PositiveFloat = Field(
        default=30.0,
        description="A request that has not started to run after this many seconds in the queue gets status 504; one that is "
        "expected to wait longer gets 429 at once. Above 0.",
    )

    max_body_bytes: PositiveInt = Field(
        default=64 * MIB,
        description="Maximum size of a request body in bytes, before and after decompression. "
        "At most max_inflight_bytes.",
    )
    max_json_bytes: PositiveInt = Field(
        default=8 * MIB,
        description="Maximum size of a JSON request body in bytes, at most max_body_bytes. Lower than "
        "max_body_bytes because JSON takes more CPU time and memory than binary bodies.",
    )
    max_inflight_bytes: PositiveInt = Field(
        default=512 * MIB,
        description="Maximum bytes of all request bodies and unsent responses together, over all front ends, "
        "which bounds the memory of the service.",
    )
    max_connections: PositiveInt = Field(
        default=4096,
        description="Maximum number of open client connections. Each needs a file descriptor.",
    )
    max_header_bytes: PositiveInt = Field(
        default=64 * 1024, description="Maximum size of a request line and its headers in bytes."
    )
    header_timeout_seconds: PositiveFloat = Field(
        default=10.0,
        description="Time limit for a client to send the request header, and for its TLS handshake, in seconds, above 0.",
    )
    body_timeout_seconds: PositiveFloat = Field(
        default=60.0,
        description="Time limit for a client to send the request body, in seconds, above 0.",
    )
    keep_alive_seconds: PositiveInt = Field(
        default=65,
        description="A connection is closed after this many seconds without a request, or while its client reads "
        "nothing of a response. The default is longer than the usual 60 s of load balancers.",
    )
    drain_seconds: PositiveFloat = Field(
        default=30.0,
        description="Time limit for accepted requests to finish after SIGTERM, in seconds, above 0.",
    )

    triton_metrics: bool = Field(
        default=False,
        description="Also export metrics under Triton's names (nv_inference_*), for its dashboards and autoscalers.",
    )
    tracing: bool = Field(
        default=False,
        description="Export OpenTelemetry spans of requests and batches. "
        "OTEL_* environment variables choose the destination.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Minimum level to log: debug, info, warning or error."
    )
    log_format: Literal["console", "json"] = Field(
        default="console",
        description="Log format: console for people, json for machines (one object a line).",
    )

    @field_validator("models", "devices", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(name.strip() for name in value.split(",") if name.strip()) or None
        return value

    @field_validator("allowed_hosts", "cors_origins", mode="before")
    @classmethod
    def _split_hosts(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(name.strip().lower() for name in value.split(",") if name.strip())
        return value

    @field_validator("allowed_hosts", mode="after")
    @classmethod
    def _hosts_are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            if not re.fullmatch(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*", one):
                raise ValueError(
                    f"{one!r} is not a host name: expected one such as fno.example.com, without scheme and port"
                )
        return value

    @field_validator("cors_origins", mode="after")
    @classmethod
    def _origins_are_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            if not re.fullmatch(r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]+)?", one):
                raise ValueError(
                    f"{one!r} is not an origin: expected scheme and host, such as https://lab.example.com, without a path"
                )
        return value

    @field_validator("model_limits", mode="before")
    @classmethod
    def _parse_model_limits(cls, value: Any) -> Any:
        return parse(value) if isinstance(value, str) else value

    @field_validator("devices", mode="after")
    @classmethod
    def _name_devices(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is None:
            return None
        named = tuple(
            "+".join(f"cuda:{one}" if one.isdecimal() else one for one in engine.split("+"))
            for engine in value
        )
        for given, engine in zip(value, named, strict=True):
            if not re.fullmatch(r"cpu(\+cpu)*|cuda:\d+(\+cuda:\d+)*", engine):
                raise ValueError(
                    f"{given!r} is not a device: expected cpu, the number of a CUDA device, or several of either joined "
                    "by +, such as 0+1"
                )
        cards = [one for engine in named for one in engine.split("+") if one != "cpu"]
        repeated = sorted({one for one in cards if cards.count(one) > 1})
        if repeated and any("+" in engine for engine in named):
            raise ValueError(
                f"{repeated[0]} is named twice: an engine of several CUDA devices has each of them to itself"
            )
        return named

    @model_validator(mode="after")
    def _processes_fit_together(self) -> Self:
        if self.devices and not self.frontends:
            raise ValueError(
                f"{env_name('devices')} needs processes: set {env_name('frontends')} to 1 or more, or use "
                f"{env_name('device')}"
            )
        if self.frontends and self.shared_memory_bytes < 4 * self.max_body_bytes:
            raise ValueError(
                f"{env_name('shared_memory_bytes')}={self.shared_memory_bytes} must be at least four times "
                f"{env_name('max_body_bytes')}={self.max_body_bytes}, to hold bodies and their responses"
            )
        return self

    @model_validator(mode="after")
    def _tls_needs_a_certificate(self) -> Self:
        for name in ("tls_key", "tls_client_ca"):
            if getattr(self, name) is not None and self.tls_certificate is None:
                raise ValueError(
                    f"{env_name(name)} is set, but {env_name('tls_certificate')} is not: set both or neither"
                )
        return self

    @model_validator(mode="after")
    def _model_batches_fit(self) -> Self:
        for name, limits in self.model_limits.items():
            if limits.batch > self.max_batch_size:
                raise ValueError(
                    f"{env_name('model_limits')}: batch={limits.batch} of model {name!r} must not exceed "
                    f"{env_name('max_batch_size')}={self.max_batch_size}"
                )
        return self

    @model_validator(mode="after")
    def _limits_are_ordered(self) -> Self:
        for small, large in (
            ("max_fields_per_request", "max_queued_fields_per_model"),
            ("max_queued_fields_per_model", "max_queued_fields"),
            ("max_json_bytes", "max_body_bytes"),
            ("max_body_bytes", "max_inflight_bytes"),
        ):
            if getattr(self, small) > getattr(self, large):
                raise ValueError(
                    f"{env_name(small)}={getattr(self, small)} must not exceed "
                    f"{env_name(large)}={getattr(self, large)}"
                )
        return self
