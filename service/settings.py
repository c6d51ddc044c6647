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
"""Where the command line's client finds its key; no setting of the server."""
MIB = 1024 * 1024


def env_name(setting: str) -> str:
    """The environment variable of a setting, as error messages name it."""
    if setting not in Settings.model_fields:
        raise KeyError(f"no setting is called {setting!r}")
    return ENV_PREFIX + setting.upper()


def misspelt_variables(environment: Iterable[str]) -> list[str]:
    """A line for each environment variable that looks like a setting and is none."""
    lines = []
    for name in sorted(environment):
        setting = name.upper().removeprefix(ENV_PREFIX).lower()
        known = setting in Settings.model_fields or name == API_KEY_VARIABLE
        if name.upper().startswith(ENV_PREFIX) and not known:
            close = difflib.get_close_matches(setting, Settings.model_fields, n=1)
            remedy = f"did you mean {env_name(close[0])}?" if close else "see turbofno config"
            lines.append(f"{name} is not a setting; {remedy}")
    return lines


def http_url(host: str, port: int, *, tls: bool = False) -> str:
    """Where this machine reaches a server that listens on `host`."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def exposure_warnings(settings: Settings) -> list[str]:
    """A line for each way in which whoever reaches the address or the files is trusted more than they may deserve."""
    return [*_exposed_address(settings), *_exposed_secrets(settings)]


def _exposed_address(settings: Settings) -> list[str]:
    if is_loopback(settings.host):
        return []
    if settings.api_keys_file is None:
        return [
            f"listening on {settings.host}, not loopback, without API keys: whoever reaches it can use it "
            f"({env_name('api_keys_file')})"
        ]
    if settings.tls_certificate is None:
        return [
            f"listening on {settings.host}, not loopback, without TLS: API keys and fields can be read on the way, "
            f"unless a proxy in front speaks TLS ({env_name('tls_certificate')})"
        ]
    return []


def _exposed_secrets(settings: Settings) -> list[str]:
    """Files of keys that every user of the machine can read."""
    files = {"api_keys_file": settings.api_keys_file, "tls_key": settings.tls_key}
    return [
        f"every user of this machine can read {env_name(setting)}={path}: take that away with chmod o-r"
        for setting, path in files.items()
        if path is not None and path.exists() and path.stat().st_mode & stat.S_IROTH
    ]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Settings(BaseSettings):
    """All limits are enforced with an error message that names the setting's environment variable."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="forbid", protected_namespaces=()
    )

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8080, ge=0, le=65535, description="TCP port; 0 picks a free one")
    model_repository: Path = Field(
        default=TRAINED,
        description="folder that holds one folder for each model",
    )
    models: Annotated[tuple[str, ...] | None, NoDecode] = Field(
        default=None, description="load only these models (comma-separated names); unset loads all"
    )
    ui: bool = Field(
        default_factory=lambda data: is_loopback(data.get("host", "")),
        description="serve the web page /ui and the samplers and solvers that it uses; "
        "unset does so only when the service listens on a loopback address",
    )
    solver_seconds: PositiveFloat = Field(
        default=20.0, description="most time that drawing a sample or solving a PDE may take"
    )
    api_keys_file: Path | None = Field(
        default=None,
        description="file with a line NAME KEY [fields=N] [bytes=N] for each API key and what it may have in work "
        "at once, read again at SIGHUP; unset lets everybody in",
    )
    model_control: bool = Field(
        default_factory=lambda data: data.get("api_keys_file") is not None,
        description="allow loading and unloading models over HTTP; unset allows it only with API keys",
    )
    public_metrics: bool = Field(
        default=False, description="with API keys: let /metrics be read without one"
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="names (comma-separated, *.example.com for all below one, * for any) by which clients and proxies "
        "call this server, beside localhost, IP addresses, the name in host and, where it listens beyond loopback, "
        "names that no public DNS has",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="origins (comma-separated, such as https://lab.example.com) whose web pages may call this server; "
        "empty allows only its own page",
    )
    tls_certificate: Path | None = Field(
        default=None,
        description="certificate chain (PEM), read again at SIGHUP; set, the server speaks HTTPS only",
    )
    tls_key: Path | None = Field(
        default=None, description="its private key (PEM); unset: in the same file"
    )
    tls_client_ca: Path | None = Field(
        default=None,
        description="certificate authority (PEM) that clients must have a certificate of; unset asks for none",
    )
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="where models run: auto (CUDA when there is any), cpu, cuda, cuda:1, ...",
    )
    frontends: NonNegativeInt = Field(
        default=0,
        description="HTTP processes on the one port, beside an engine process for each device; "
        "0 does everything in one process",
    )
    devices: Annotated[tuple[str, ...] | None, NoDecode] = Field(
        default=None,
        description="with frontends: run every model on each of these (comma-separated: 0,1,... for CUDA "
        "devices, or cpu); unset takes the one that device names",
    )
    shared_memory_bytes: PositiveInt = Field(
        default=512 * MIB,
        description="with frontends: most memory of each for the bodies and answers under way; "
        "each GPU's engine page-locks the first 128 MiB of it",
    )
    hang_seconds: PositiveFloat = Field(
        default=10.0,
        description="with frontends: a process that gives no sign of life for so long is started again",
    )
    torch_threads: PositiveInt | None = Field(
        default=None,
        description="CPU threads for a model's arithmetic; unset leaves torch's choice, but on a CPU "
        "keeps one of the usable cores free for HTTP",
    )

    precision: Literal["model", "fp32", "tf32", "bf16"] = Field(
        default="model",
        description="what models compute in on a GPU: model (as each model's config says), fp32, tf32 or bf16; "
        "a CPU computes in float32",
    )
    trust: bool = Field(
        default=True,
        description="judge every prediction: how far its input is from the training data, how badly it misses its "
        "PDE, where the model's config lets that be told",
    )
    require_native: bool = Field(
        default=False,
        description="do not start unless models run on a GPU through the CUDA kernels",
    )
    device_memory_fraction: float = Field(
        default=0.9, gt=0, le=1, description="most of the GPU's memory that this process may take"
    )

    max_batch_size: PositiveInt = Field(default=16, description="most fields in one device batch")
    max_batch_bytes: PositiveInt = Field(
        default=256 * MIB,
        description="most input bytes in one device batch; a single field may exceed it",
    )
    max_queue_delay_seconds: NonNegativeFloat = Field(
        default=0.0,
        description="how long an idle device waits for a batch to fill; 0 starts at once",
    )
    max_queued_fields_per_model: PositiveInt = Field(
        default=8192, description="most fields of one model that wait for the device"
    )
    max_queued_fields: PositiveInt = Field(
        default=16384, description="most fields of all models together that wait for the device"
    )
    max_fields_per_request: PositiveInt = Field(
        default=4096, description="most fields that one request may carry"
    )
    max_gradient_bytes: PositiveInt = Field(
        default=2048 * MIB,
        description="most memory that a batch of gradients takes for what the model's layers keep",
    )
    max_activation_bytes: PositiveInt = Field(
        default=8192 * MIB,
        description="most memory that all layers of a model together write for one field on its training grid; "
        "a model that needs more is not loaded",
    )
    max_rollout_steps: PositiveInt = Field(
        default=10_000, description="most steps that one rollout may run"
    )
    model_limits: Annotated[dict[str, ModelLimits], NoDecode] = Field(
        default={},
        description="what single models may take: NAME [fields=N] [bytes=N] [batch=N], with a comma between models; "
        "fields and body and answer bytes in work at once, fields in one device batch",
    )
    request_deadline_seconds: PositiveFloat = Field(
        default=30.0, description="a request that has not started to run after this time gets 504"
    )

    max_body_bytes: PositiveInt = Field(
        default=64 * MIB, description="largest request body, before and after decompression"
    )
    max_json_bytes: PositiveInt = Field(
        default=8 * MIB, description="largest JSON request body; binary bodies carry more for less"
    )
    max_inflight_bytes: PositiveInt = Field(
        default=512 * MIB,
        description="most body and unsent answer bytes of all requests being served together",
    )
    max_connections: PositiveInt = Field(default=4096, description="most open client connections")
    max_header_bytes: PositiveInt = Field(
        default=64 * 1024, description="largest request line and headers together"
    )
    header_timeout_seconds: PositiveFloat = Field(
        default=10.0, description="a client must send its whole request header within this time"
    )
    body_timeout_seconds: PositiveFloat = Field(
        default=60.0, description="a client must send its whole request body within this time"
    )
    keep_alive_seconds: PositiveInt = Field(
        default=65,
        description="how long a connection stays open when idle, or when its client reads nothing of "
        "the answer",
    )
    drain_seconds: PositiveFloat = Field(
        default=30.0, description="how long accepted work may take to finish after SIGTERM"
    )

    triton_metrics: bool = Field(
        default=False,
        description="also give metrics under Triton's names (nv_inference_*), for its dashboards and autoscalers",
    )
    tracing: bool = Field(
        default=False,
        description="make OpenTelemetry spans of requests and batches; the OTEL_* variables say where they go",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe level that is logged"
    )
    log_format: Literal["console", "json"] = Field(
        default="console", description="console for people, json (one object a line) for machines"
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
                    f"{one!r} is no host name: expected one such as fno.example.com, without scheme and port"
                )
        return value

    @field_validator("cors_origins", mode="after")
    @classmethod
    def _origins_are_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            if not re.fullmatch(r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]+)?", one):
                raise ValueError(
                    f"{one!r} is no origin: expected scheme and host, such as https://lab.example.com, without a path"
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
        named = tuple(f"cuda:{one}" if one.isdecimal() else one for one in value)
        for one in named:
            if not re.fullmatch(r"cpu|cuda:\d+", one):
                raise ValueError(f"{one!r} is no device: expected cpu, or numbers of CUDA devices")
        return named

    @model_validator(mode="after")
    def _processes_fit_together(self) -> Self:
        if self.devices and not self.frontends:
            raise ValueError(f"{env_name('devices')} needs {env_name('frontends')} to be 1 or more")
        if self.frontends and self.shared_memory_bytes < 4 * self.max_body_bytes:
            raise ValueError(
                f"{env_name('shared_memory_bytes')}={self.shared_memory_bytes} must be at least four times "
                f"{env_name('max_body_bytes')}={self.max_body_bytes}, to hold a body and its answer"
            )
        return self

    @model_validator(mode="after")
    def _tls_needs_a_certificate(self) -> Self:
        for name in ("tls_key", "tls_client_ca"):
            if getattr(self, name) is not None and self.tls_certificate is None:
                raise ValueError(
                    f"{env_name(name)} is set, but {env_name('tls_certificate')} is not"
                )
        return self

    @model_validator(mode="after")
    def _batches_are_no_larger(self) -> Self:
        for name, limits in self.model_limits.items():
            if limits.batch > self.max_batch_size:
                raise ValueError(
                    f"{env_name('model_limits')}: batch={limits.batch} of model {name!r} must not exceed "
                    f"{env_name('max_batch_size')}={self.max_batch_size}"
                )
        return self

    @model_validator(mode="after")
    def _limits_leave_room(self) -> Self:
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
