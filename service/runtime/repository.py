"""Which models there are and in what state: find, load, warm up, swap, unload."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turbofno.models.core.checkpoint import load_model
from turbofno.models.core.memory import activation_bytes
from turbofno.models.core.registry import discover
from turbofno.service.engine.interface import ModelStatus
from turbofno.service.engine.remembered import Remembered
from turbofno.service.errors import NotFound, ServiceError, Unavailable
from turbofno.service.runtime.forward import EXECUTIONS, Forward
from turbofno.service.runtime.model_slot import ModelSlot
from turbofno.service.settings import env_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import torch

    from turbofno.models.core.config import ModelConfig
    from turbofno.models.core.registry import ModelLocation
    from turbofno.service.metrics import Metrics
    from turbofno.service.runtime.device_pipeline import Pipeline
    from turbofno.service.settings import Settings

logger = logging.getLogger(__name__)

_UNLOADED = "unloaded"
_VANISHED = "the model repository holds it no more"
_INTERRUPTED = (
    "the engine ended while it loaded this model, and was started again without it; load it again"
)
"""What may have ended the engine is not tried again unasked."""


@dataclass(slots=True)
class _Entry:
    """One (name, version). `slot` is set exactly while it can serve."""

    state: str = "LOADING"
    reason: str = ""
    slot: ModelSlot | None = None


class Repository:
    """State changes on the event loop only; reading checkpoints on a thread of its own; warm-up on the device's."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        *,
        device: torch.device,
        pipeline: Pipeline,
        run_on_device: Callable[[Callable[[], bool]], Awaitable[bool]],
        most_fields: Callable[[str, int], int],
    ) -> None:
        """`most_fields` are those of a batch of a model, by its name and the bytes of a field."""
        self._settings = settings
        self._metrics = metrics
        self._run_on_device = run_on_device
        self._most_fields = most_fields
        self._device = device
        self._pipeline = pipeline
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._users: Counter[ModelSlot] = Counter()
        """Number of requests that hold a model."""
        self._unused = asyncio.Event()
        self._lock = asyncio.Lock()
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="turbofno-loader")
        self._required: set[tuple[str, str]] = set()

    def find(self, remembered: Sequence[Remembered] = ()) -> list[ModelLocation]:
        """The models to load at start, all LOADING from now on: those that the settings name, or a predecessor had.

        Raises:
            ValueError: the repository is no folder; without a predecessor also if it holds no model, or lacks one
                that the settings name.
        """
        locations = self._discover()
        if remembered:
            return self._find_again(locations, remembered)
        wanted = self._settings.models
        names = {location.name for location in locations}
        if missing := sorted(set(wanted or ()) - names):
            raise ValueError(
                f"{env_name('models')} names {', '.join(missing)}, which {self._settings.model_repository} "
                f"does not hold; it holds {', '.join(sorted(names)) or 'no model'}"
            )
        if unknown := sorted(set(self._settings.model_limits) - names):
            raise ValueError(
                f"{env_name('model_limits')} names {', '.join(unknown)}, which {self._settings.model_repository} "
                f"does not hold; it holds {', '.join(sorted(names)) or 'no model'}"
            )
        chosen = [location for location in locations if wanted is None or location.name in wanted]
        if not chosen:
            raise ValueError(
                f"no model in {self._settings.model_repository} ({env_name('model_repository')}): expected "
                "a folder for each model with config.json and model.safetensors"
            )
        for location in chosen:
            self._entries[location.name, location.version] = _Entry()
        self._required = set(self._entries)
        return chosen

    def remembered(self) -> tuple[Remembered, ...]:
        """What a successor should know, should this process die now: what serves or must, and what does not and why."""

        def reason(key: tuple[str, str], entry: _Entry) -> str:
            if entry.slot is not None or key in self._required:
                return ""
            return _INTERRUPTED if entry.state == "LOADING" else entry.reason

        return tuple(Remembered(*key, reason(key, entry)) for key, entry in self._entries.items())

    async def load_all(self, locations: list[ModelLocation]) -> None:
        """Load one after another; a broken one becomes UNAVAILABLE with its reason."""
        async with self._lock:
            for location in locations:
                try:
                    await self._load(location)
                except Unavailable:
                    logger.warning("the service goes on without model %s", location.name)

    async def load(self, name: str) -> None:
        """(Re)load every version of a model; one that serves already goes on serving until the new is warm.

        Raises:
            NotFound: the repository holds no such model.
            Unavailable: a version cannot be loaded; its predecessor, if any, still serves.
        """
        async with self._lock:
            locations = [location for location in self._discover() if location.name == name]
            if not locations:
                raise NotFound(
                    f"the model repository holds no model {name!r}; "
                    "POST /v2/repository/index lists what it holds"
                )
            for location in locations:
                await self._load(location)

    async def unload(self, name: str) -> None:
        """Let requests under way finish, then drop every version of the model. Raises NotFound."""
        async with self._lock:
            found = [entry for key, entry in self._entries.items() if key[0] == name]
            if not found:
                raise self._unknown(name, None)
            self._required = {key for key in self._required if key[0] != name}
            for entry in found:
                slot = entry.slot
                if slot is not None:
                    entry.state, entry.reason, entry.slot = "UNLOADING", _UNLOADED, None
                    await self._until_unused(slot)
                    self._metrics.model_loaded.remove(
                        slot.name, slot.version, slot.ran.backend, slot.ran.precision
                    )
                    logger.info("unloaded model %s version %s", slot.name, slot.version)
                entry.state, entry.reason = "UNAVAILABLE", _UNLOADED

    def slot(self, name: str, version: str | None) -> ModelSlot:
        """The model that serves (newest version that is ready if None). Raises NotFound, Unavailable."""
        if version is not None:
            # Most calls: a request asks again for the version that it has found.
            entry = self._entries.get((name, version))
            if entry is not None and entry.slot is not None:
                return entry.slot
        versions = self._versions(name, version)
        for entry in versions:
            if entry.slot is not None:
                return entry.slot
        newest = versions[0]
        why = f" ({newest.reason})" if newest.reason else ""
        raise Unavailable(
            f"model {name!r} is {newest.state}{why}",
            retry_after=1.0 if newest.state == "LOADING" else None,
        )

    def hold(self, slot: ModelSlot, requests: int) -> None:
        """Keep a model from being unloaded until so many requests let it go."""
        self._users[slot] += requests

    def let_go(self, slot: ModelSlot, requests: int) -> None:
        """The other end of `hold`."""
        self._users[slot] -= requests
        if not self._users[slot]:
            del self._users[slot]
            self._unused.set()

    def statuses(self) -> list[ModelStatus]:
        """Every known (name, version), sorted."""
        return [
            _status(*key, entry)
            for key, entry in sorted(
                self._entries.items(), key=lambda item: (item[0][0], int(item[0][1]))
            )
        ]

    @property
    def device_bytes(self) -> int:
        """Bytes that the compiled chains of all models that serve hold on the device."""
        return sum(slot.device_bytes for slot in self._serving())

    @property
    def ready(self) -> bool:
        """Every start-up model that was not unloaded on purpose can serve, and at least one model can."""
        serving = {key for key, entry in self._entries.items() if entry.slot is not None}
        return bool(serving) and self._required <= serving

    def close(self) -> None:
        """End the loader thread once it is done."""
        self._loader.shutdown(wait=False, cancel_futures=True)

    def _find_again(
        self, locations: list[ModelLocation], remembered: Sequence[Remembered]
    ) -> list[ModelLocation]:
        found = {(location.name, location.version): location for location in locations}
        for name, version, reason in remembered:
            why = reason or ("" if (name, version) in found else _VANISHED)
            self._entries[name, version] = _Entry("UNAVAILABLE", why) if why else _Entry()
        self._required = {key for key, entry in self._entries.items() if not entry.reason}
        return [location for key, location in found.items() if key in self._required]

    def _discover(self) -> list[ModelLocation]:
        root = self._settings.model_repository
        if not root.is_dir():
            raise ValueError(f"{env_name('model_repository')}={root} is not a folder")
        return discover(root)

    def _versions(self, name: str, version: str | None) -> list[_Entry]:
        """Newest first; at least one."""
        known = sorted((int(key[1]), key) for key in self._entries if key[0] == name)
        if not known:
            raise self._unknown(name, version)
        if version is None:
            return [self._entries[key] for _, key in reversed(known)]
        entry = self._entries.get((name, version))
        if entry is None:
            raise self._unknown(name, version)
        return [entry]

    def _unknown(self, name: str, version: str | None) -> NotFound:
        versions = [known for model, known in self._entries if model == name]
        if versions:
            return NotFound(
                f"model {name!r} has no version {version!r}; it has {', '.join(sorted(versions))}"
            )
        names = sorted({model for model, _ in self._entries})
        return NotFound(f"there is no model {name!r}; there are {', '.join(names) or 'none'}")

    async def _load(self, location: ModelLocation) -> None:
        key = (location.name, location.version)
        entry = self._entries.setdefault(key, _Entry())
        old = entry.slot
        if old is None:
            entry.state, entry.reason = "LOADING", ""
        started = time.perf_counter()
        try:
            slot = await asyncio.get_running_loop().run_in_executor(
                self._loader, self._read, location
            )
            largest = self._most_fields(location.name, slot.field_bytes)
            # One by one, so that batches of models that serve run between them.
            for step in slot.warm_up(largest, max_gradient_bytes=self._settings.max_gradient_bytes):
                if not await self._run_on_device(step):
                    break
        except Exception as error:
            reason = error.message if isinstance(error, ServiceError) else str(error)
            logger.error(
                "model %s version %s cannot be loaded: %s", *key, reason,
                exc_info=None if isinstance(error, ValueError | OSError) else error,
            )  # fmt: skip
            # Clients see the reason: where the repository lies on this machine is not their business.
            reason = reason.replace(f"{self._settings.model_repository}/", "")
            if old is None:
                entry.state, entry.reason = "UNAVAILABLE", reason
            raise Unavailable(
                f"model {location.name!r} version {location.version} cannot be loaded: {reason}"
            ) from error
        entry.state, entry.reason, entry.slot = "READY", "", slot
        seconds = time.perf_counter() - started
        if old is not None:
            self._metrics.model_loaded.remove(
                old.name, old.version, old.ran.backend, old.ran.precision
            )
        self._metrics.serve(*key)
        self._metrics.model_loaded.labels(*key, slot.ran.backend, slot.ran.precision).set(1)
        self._metrics.model_load_seconds.labels(*key).set(seconds)
        logger.info(
            "loaded model %s version %s on %s in %.2f s; spectral backend %s, %s%s; runs %s",
            *key, self._device, seconds, slot.ran.backend, slot.ran.precision,
            "" if slot.ran.precision == slot.asked_precision else f" ({slot.asked_precision} was asked for)",
            EXECUTIONS[slot.ran.execution] + (f" ({slot.ran.reason})" if slot.ran.reason else ""),
        )  # fmt: skip

    def _read(self, location: ModelLocation) -> ModelSlot:
        loaded = load_model(
            location.path,
            device=self._device,
            repository=self._settings.model_repository,
            check=self._check_size,
        )
        found = (loaded.config.name, loaded.config.version)
        if found != (location.name, location.version):
            raise ValueError(
                f"{location.path}: config.json says model {found[0]!r} version {found[1]}, but the folder "
                f"means {location.name!r} version {location.version}; rename one of them "
                "(version V lies in NAME/V/, version 1 may lie in NAME/)"
            )
        wanted = self._settings.precision
        precision = loaded.config.precision if wanted == "model" else wanted
        forward = Forward(
            location.name,
            loaded.module,
            self._device,
            precision=precision,
            max_batch=self._settings.max_batch_size,
        )
        return ModelSlot(
            loaded.config,
            forward,
            self._pipeline,
            device=self._device,
            asked=precision,
            trust=self._settings.trust,
            others=self._serving,
        )

    def _check_size(self, config: ModelConfig) -> None:
        grid, most = config.grid.training, self._settings.max_activation_bytes
        needed = activation_bytes(config.architecture, grid)
        if needed > most:
            raise ValueError(
                f"its layers write {needed:.3g} bytes for one field on the training grid {list(grid)}, the limit is "
                f"{most} ({env_name('max_activation_bytes')}); raise it if the model is to be trusted so far"
            )

    def _serving(self) -> list[ModelSlot]:
        """The models that can serve. On any thread: the copy is made in one step."""
        slots = (entry.slot for entry in tuple(self._entries.values()))
        return [slot for slot in slots if slot is not None]

    async def _until_unused(self, slot: ModelSlot) -> None:
        while slot in self._users:
            self._unused.clear()
            await self._unused.wait()


def _status(name: str, version: str, entry: _Entry) -> ModelStatus:
    slot = entry.slot
    if slot is None:
        return ModelStatus(name, version, entry.state, entry.reason)
    return ModelStatus(
        name,
        version,
        entry.state,
        entry.reason,
        backend=slot.ran.backend,
        precision=slot.ran.precision,
        asked_precision=slot.asked_precision,
        execution=slot.ran.execution,
        execution_reason=slot.ran.reason,
    )
