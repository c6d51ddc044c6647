"""The model repository and the states of its models: find, load, warm up, replace, unload."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

import torch

from turbofno.models.core.checkpoint import WEIGHTS_FILE, load_model
from turbofno.models.core.memory import activation_bytes
from turbofno.models.core.registry import CONFIG_FILE, discover
from turbofno.service.engine.interface import ModelStatus, RecoveryRecord, not_served
from turbofno.service.engine.out_of_memory import out_of_memory, release_frames
from turbofno.service.errors import NotFound, ServiceError, Unavailable
from turbofno.service.runtime.forward import EXECUTIONS, Forward
from turbofno.service.runtime.model_instance import ModelInstance
from turbofno.service.settings import env_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from turbofno.models.core.config import ModelConfig
    from turbofno.models.core.registry import ModelLocation
    from turbofno.service.metrics import Metrics
    from turbofno.service.runtime.device_pipeline import Pipeline
    from turbofno.service.runtime.slabs import SlabGroup
    from turbofno.service.settings import Settings

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

LOADER_NAME = "turbofno-loader"
"""Name of the thread that reads models."""

_UNLOADED = "unloaded"
_VANISHED = "the model repository no longer holds it"
_INTERRUPTED = (
    "the engine ended while it loaded this model, and was restarted without it; load it again"
)
"""Not retried automatically, since loading it may have killed the engine."""
_NO_MEMORY = "there is not enough free memory to load it"
_AGAIN = "it is tried again until it is loaded or unloaded"
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
"""Seconds between attempts to load a model at start for which there is no memory; each is twice the one before."""


@dataclass(slots=True)
class _Entry:
    """One (name, version). `instance` is set while it can serve, `leaving` while requests use what was unloaded."""

    state: str = "LOADING"
    reason: str = ""
    instance: ModelInstance | None = None
    leaving: ModelInstance | None = None
    path: Path | None = None
    """The folder that `instance` was read from."""


class Repository:
    """States change on the event loop only; checkpoints are read on a loader thread; warm-up runs on the device thread."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        *,
        device: torch.device,
        pipeline: Pipeline,
        run_on_device: Callable[[Callable[[], bool | None]], Awaitable[bool | None]],
        max_fields: Callable[[str, int], int],
        group: SlabGroup | None = None,
    ) -> None:
        """`max_fields` gives the largest batch for a model's name and the bytes of a field; `group` has all devices."""
        self._settings = settings
        self._metrics = metrics
        self._run_on_device = run_on_device
        self._most_fields = max_fields
        self._device = device
        self._group = group
        self._pipeline = pipeline
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._users: Counter[ModelInstance] = Counter()
        """Number of requests that use a model."""
        self._unused = asyncio.Event()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._loader = ThreadPoolExecutor(1, thread_name_prefix=LOADER_NAME)
        self._required: set[tuple[str, str]] = set()
        self._left: dict[tuple[str, str], ModelLocation] = {}
        """Models of the start that were not tried yet, or for which there was no memory."""

    def find(self, recovery: Sequence[RecoveryRecord] = ()) -> list[ModelLocation]:
        """The models to load at start, now LOADING: those in the recovery records, else those in the settings.

        Raises:
            ValueError: the repository is not a folder; without recovery records also if it holds no model, or lacks
                one that the settings name.
        """
        locations = self._discover()
        if recovery:
            return self._find_recovered(locations, recovery)
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

    def recovery_records(self) -> tuple[RecoveryRecord, ...]:
        """A record of every model for an engine that replaces this one: to load again, or not and why."""

        def reason(key: tuple[str, str], entry: _Entry) -> str:
            if entry.instance is not None or key in self._required:
                return ""
            return _INTERRUPTED if entry.state == "LOADING" else entry.reason

        return tuple(
            RecoveryRecord(*key, reason(key, entry)) for key, entry in self._entries.items()
        )

    async def load_all(self, locations: list[ModelLocation]) -> None:
        """Load models in order. One that cannot be loaded becomes UNAVAILABLE with the reason.

        Only one for which there is no memory is tried again, until it is loaded or unloaded: other processes may free some.
        """
        self._left = {(location.name, location.version): location for location in locations}
        pause = _FIRST_PAUSE
        while await self._load_left():
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _load_left(self) -> bool:
        """Load what is left, is wanted and does not serve yet. True if there is no memory now for some."""
        for key, location in tuple(self._left.items()):
            async with self._lock(location.name):
                if self._is_left(key):
                    with suppress(Unavailable):
                        await self._load(location)
                    if self._entries[key].reason == _NO_MEMORY:
                        continue
                del self._left[key]
        return bool(self._left)

    def _is_left(self, key: tuple[str, str]) -> bool:
        """True if `load_all` still tries to load that version."""
        return key in self._left and key in self._required and self._entries[key].instance is None

    def _lock(self, name: str) -> asyncio.Lock:
        """Held while versions of that model are loaded or retired. Other models do not wait, but for the loader thread."""
        return self._locks.setdefault(name, asyncio.Lock())

    async def load(self, name: str) -> None:
        """(Re)load every version of a model; the old instance serves until the new one is warm. Drops versions that are gone.

        Raises:
            NotFound: the repository holds no such model.
            Unavailable: the repository cannot be read; or a version cannot be loaded, while the others are. What served
                before and is not replaced still does.
        """
        async with self._lock(name):
            locations = await self._on_loader(self._find_versions, name)
            held = {location.version for location in locations}
            gone = [key for key in self._entries if key[0] == name and key[1] not in held]
            failures = [
                f"model {name!r} version {key[1]} cannot be loaded: its folder has no readable {CONFIG_FILE}"
                for key in gone
                if await self._on_loader(_lacks_config, self._entries[key])
            ]
            if not locations and not failures:
                raise NotFound(
                    f"the model repository holds no model {name!r}: expected a folder of that name with {CONFIG_FILE}, "
                    "or with a folder for each version, such as 1, that has one"
                )
            for location in locations:
                try:
                    await self._load(location)
                except Unavailable as error:
                    failures.append(error.message)
            if failures:
                raise Unavailable("; ".join(failures))
            self._retire(gone, _VANISHED)
        await self._finish(gone)

    async def unload(self, name: str) -> None:
        """Finish pending requests, then drop every version of the model. Raises NotFound."""
        async with self._lock(name):
            found = [key for key in self._entries if key[0] == name]
            if not found:
                raise not_served(name, None, self.statuses())
            self._retire(found, _UNLOADED)
        # Without the lock: a rollout may take long, and the model may be loaded again meanwhile.
        await self._finish(found)

    def _retire(self, keys: Sequence[tuple[str, str]], reason: str) -> None:
        """Refuse new requests of versions from now on."""
        self._required.difference_update(keys)
        for entry in [self._entries[key] for key in keys]:
            instance = entry.instance
            if instance is not None:
                entry.instance, entry.leaving = None, instance
                self._metrics.model_loaded.remove(
                    instance.name, instance.version, instance.ran.backend, instance.ran.precision
                )
            entry.state = "UNAVAILABLE" if entry.leaving is None else "UNLOADING"
            entry.reason = reason

    async def _finish(self, keys: Sequence[tuple[str, str]]) -> None:
        """Finish pending requests of retired versions, then drop them."""
        for key in keys:
            entry = self._entries[key]
            leaving = entry.leaving
            if leaving is None:
                continue
            await self._wait_until_unused(leaving)
            # Else it was loaded again meanwhile, or dropped by another.
            if entry.leaving is leaving:
                entry.leaving = None
                # Else it is being loaded, or that failed and the reason is known.
                if entry.state == "UNLOADING":
                    entry.state = "UNAVAILABLE"
                logger.info("unloaded model %s version %s", *key)

    def get(self, name: str, version: str | None) -> ModelInstance:
        """A ready model (the newest ready version if None). Raises NotFound, Unavailable."""
        if version is not None:
            # The common case: a request names the version that it was validated against.
            entry = self._entries.get((name, version))
            if entry is not None and entry.instance is not None:
                return entry.instance
        else:
            known = [key for key in self._entries if key[0] == name]
            if len(known) > 1:
                known.sort(key=lambda key: int(key[1]), reverse=True)
            for key in known:
                if (instance := self._entries[key].instance) is not None:
                    return instance
        raise not_served(name, version, self.statuses())

    def acquire(self, instance: ModelInstance, requests: int) -> None:
        """Count requests that use a model, which delays its unloading until they release it."""
        self._users[instance] += requests

    def release(self, instance: ModelInstance, requests: int) -> None:
        """Undo `acquire`."""
        self._users[instance] -= requests
        if not self._users[instance]:
            del self._users[instance]
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
        """Device memory of the compiled chains and graphs of all ready models."""
        return sum(instance.device_bytes for instance in self._serving())

    @property
    def ready(self) -> bool:
        """True if at least one model can serve, and every start-up model that was not unloaded."""
        serving = {key for key, entry in self._entries.items() if entry.instance is not None}
        return bool(serving) and self._required <= serving

    def close(self) -> None:
        """End the loader thread after its current model."""
        self._loader.shutdown(wait=False, cancel_futures=True)

    def _find_recovered(
        self, locations: list[ModelLocation], recovery: Sequence[RecoveryRecord]
    ) -> list[ModelLocation]:
        found = {(location.name, location.version): location for location in locations}
        for name, version, reason in recovery:
            why = reason or ("" if (name, version) in found else _VANISHED)
            self._entries[name, version] = _Entry("UNAVAILABLE", why) if why else _Entry()
        self._required = {key for key, entry in self._entries.items() if not entry.reason}
        return [location for key, location in found.items() if key in self._required]

    def _find_versions(self, name: str) -> list[ModelLocation]:
        """The versions of a model in the repository. Raises Unavailable if it cannot be read."""
        try:
            return self._discover(name)
        except (OSError, ValueError) as error:
            logger.error("the model repository cannot be read: %s", error)
            raise Unavailable(
                "the model repository cannot be read; the server's log says why"
            ) from error

    def _discover(self, name: str | None = None) -> list[ModelLocation]:
        root = self._settings.model_repository
        if not root.is_dir():
            raise ValueError(f"{env_name('model_repository')}={root} is not a folder")
        return discover(root, name)

    async def _on_loader(self, read: Callable[[T], R], of: T) -> R:
        """Read files on the loader thread: a slow file system must not block the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._loader, read, of)

    async def _load(self, location: ModelLocation) -> None:
        """Load a version. Raises Unavailable."""
        key = (location.name, location.version)
        entry = self._entries.setdefault(key, _Entry())
        old = entry.instance
        if old is None:
            entry.state, entry.reason = "LOADING", ""
        started = time.perf_counter()
        try:
            instance = await self._read_and_warm_up(location)
        except asyncio.CancelledError:
            logger.warning("stopping while model %s version %s is loaded; it is left behind", *key)
            raise
        except Exception as error:
            # a MemoryError has no text
            reason = error.message if isinstance(error, ServiceError) else str(error) or repr(error)
            no_memory = out_of_memory(error)
            again = f"; {_AGAIN}" if no_memory and self._is_left(key) else ""
            logger.error(
                "model %s version %s cannot be loaded: %s%s", *key, reason.removesuffix("."), again,
                exc_info=None if no_memory or isinstance(error, ValueError | OSError) else error,
            )  # fmt: skip
            if no_memory:
                release_frames(error)
                reason = _NO_MEMORY
            # Clients see the reason, but not the repository's path on this machine.
            reason = reason.replace(f"{self._settings.model_repository}/", "")
            if old is None:
                entry.state, entry.reason = "UNAVAILABLE", reason
            if no_memory:
                # On the device thread: it would break a graph capture there.
                await self._run_on_device(torch.cuda.empty_cache)
            raise Unavailable(
                f"model {location.name!r} version {location.version} cannot be loaded: {reason}{again}"
            ) from error
        entry.state, entry.reason, entry.instance, entry.leaving = "READY", "", instance, None
        entry.path = location.path
        seconds = time.perf_counter() - started
        if old is not None:
            self._metrics.model_loaded.remove(
                old.name, old.version, old.ran.backend, old.ran.precision
            )
        self._metrics.serve(*key)
        self._metrics.model_loaded.labels(*key, instance.ran.backend, instance.ran.precision).set(1)
        self._metrics.model_load_seconds.labels(*key).set(seconds)
        logger.info(
            "loaded model %s version %s on %s in %.2f s; spectral backend %s, %s%s; runs %s",
            *key, self._device, seconds, instance.ran.backend, instance.ran.precision,
            "" if instance.ran.precision == instance.asked_precision else f" ({instance.asked_precision} was asked for)",
            EXECUTIONS[instance.ran.execution] + (f" ({instance.ran.reason})" if instance.ran.reason else ""),
        )  # fmt: skip

    async def _read_and_warm_up(self, location: ModelLocation) -> ModelInstance:
        """A model that is ready to serve. An error that is raised here holds the last references to it."""
        instance = await self._on_loader(self._read, location)
        largest = self._most_fields(location.name, instance.field_bytes)
        # Step by step, so that batches of other models run in between.
        for step in instance.warm_up(largest, max_gradient_bytes=self._settings.max_gradient_bytes):
            if not await self._run_on_device(step):
                break
        return instance

    def _read(self, location: ModelLocation) -> ModelInstance:
        loaded = load_model(
            location.path,
            device=self._device,
            repository=self._settings.model_repository,
            check=self._check_size,
        )
        found = (loaded.config.name, loaded.config.version)
        if found != (location.name, location.version):
            raise ValueError(
                f"{location.path}: config.json names model {found[0]!r} version {found[1]}, but the folder "
                f"means {location.name!r} version {location.version}; rename one of them "
                "(version V belongs in NAME/V/, version 1 also in NAME/)"
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
        return ModelInstance(
            loaded.config,
            forward,
            self._pipeline,
            device=self._device,
            asked=precision,
            trust=self._settings.trust,
            others=self._serving,
            slabs=None
            if self._group is None
            else self._group.model(location.path, loaded, precision),
        )

    def _check_size(self, config: ModelConfig) -> None:
        grid, most = config.grid.training, self._settings.max_activation_bytes
        needed = activation_bytes(config.architecture, grid)
        if needed > most:
            raise ValueError(
                f"its layers write {needed:.3g} bytes for one field on the training grid {list(grid)}, the limit is "
                f"{most} ({env_name('max_activation_bytes')}); raise it if you trust the model"
            )

    def _serving(self) -> list[ModelInstance]:
        """The ready models. On any thread: the copy is atomic."""
        instances = (entry.instance for entry in tuple(self._entries.values()))
        return [instance for instance in instances if instance is not None]

    async def _wait_until_unused(self, instance: ModelInstance) -> None:
        while instance in self._users:
            self._unused.clear()
            await self._unused.wait()


def _lacks_config(entry: _Entry) -> bool:
    """True if a version serves whose folder is not gone, but cannot be read, or has weights only while it is replaced."""
    if entry.instance is None or entry.path is None:
        return False
    try:
        names = {path.name for path in entry.path.iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return WEIGHTS_FILE in names and CONFIG_FILE not in names


def _status(name: str, version: str, entry: _Entry) -> ModelStatus:
    instance = entry.instance
    if instance is None:
        return ModelStatus(name, version, entry.state, entry.reason)
    return ModelStatus(
        name,
        version,
        entry.state,
        entry.reason,
        backend=instance.ran.backend,
        precision=instance.ran.precision,
        asked_precision=instance.asked_precision,
        execution=instance.ran.execution,
        execution_reason=instance.ran.reason,
    )
