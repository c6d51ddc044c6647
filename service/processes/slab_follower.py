"""A rank of an engine of several devices, except the first, which is the engine process, and whose commands it runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.distributed as dist

from turbofno.models.core.checkpoint import load_model
from turbofno.models.core.config import Precision
from turbofno.service.engine.interface import Fields
from turbofno.service.pipeline.worker import arithmetic_threads
from turbofno.service.processes.launch import Launch, enter
from turbofno.service.processes.memory import AttachedMemory, SlotMemory
from turbofno.service.processes.messages import Attach
from turbofno.service.processes.slab_commands import Answer, Failed, decoder
from turbofno.service.runtime.device import prepare_device
from turbofno.service.runtime.page_locked import lock
from turbofno.service.runtime.slabs import Slabs, Start

if TYPE_CHECKING:
    from turbofno.service.runtime.slabs import Energies

logger = logging.getLogger(__name__)

START_SECONDS = 60.0
"""Most time to join, and to make tables, connections and CUDA graphs for a new grid."""


class Follower(Slabs):
    """A rank's slabs, whose methods the first rank calls."""

    def __init__(self, device: torch.device, repository: Path) -> None:
        super().__init__(device)
        self._repository = repository
        self._memories: dict[int, AttachedMemory] = {}

    def array(self, memory: int, offset: int, shape: Sequence[int]) -> Fields:
        return self._memories[memory].view((offset, shape))

    def map(self, number: int, attachment: object) -> None:
        """Map a memory, in which arrays of commands lie."""
        attached = msgspec.convert(attachment, Attach)
        self._memories[number] = memory = _mapped(attached)
        if self._device.type == "cuda" and attached.kept:
            lock(memory.bytes, attached.kept, self._device)

    def unmap(self, number: int) -> None:
        """Unmap a memory that no command uses any more."""
        self._memories.pop(number, None)

    def load(self, model: int, path: str, sha256: str, precision: Precision) -> None:
        """Load a checkpoint whose weights have this hash."""
        loaded = load_model(Path(path), repository=self._repository)
        if loaded.config.sha256 != sha256:
            raise ValueError(f"{path} was changed while it was loaded; load the model again")
        self.add(model, loaded, precision)

    def advance(self, model: int, starts: Sequence[Sequence[Any]], *more: Any) -> Energies:
        """As `Slabs.advance`, for starts as they are sent."""
        return super().advance(model, [Start(*start) for start in starts], *more)


def _mapped(attachment: Attach) -> AttachedMemory:
    try:
        return AttachedMemory(attachment)
    except (FileNotFoundError, ProcessLookupError):
        # The front end died. What the first rank still runs for it runs on all ranks, and nobody reads the answer.
        spare = SlotMemory(attachment.size)
        return AttachedMemory(spare.attachment())


def run(launch: Launch, connection: Connection) -> int:
    """Run the commands of the first rank, from this connection, until that ends. Returns the exit status."""
    enter(launch)
    settings = launch.settings
    try:
        device = prepare_device(settings)
    except ValueError as error:
        logger.error("cannot start: %s", error)
        return os.EX_CONFIG
    on_cpu = device.type == "cpu"
    torch.set_num_threads(settings.torch_threads or arithmetic_threads(on_cpu=on_cpu))
    follower = Follower(device, settings.model_repository)
    commands = decoder(follower.array)
    connection.send_bytes(b"ready")
    join(launch, device)
    while True:
        try:
            command = commands.decode(connection.recv_bytes())
        except EOFError:
            return 0
        if not command.answered:
            command.call(follower)
            continue
        try:
            answer: Answer = command.run(follower)
        except Exception as error:
            logger.exception("%s failed", command.method)
            answer = Failed.of(error)
        connection.send_bytes(msgspec.msgpack.encode(answer))


def join(launch: Launch, device: torch.device) -> None:
    """Join the group of an engine, whose ranks are all on this machine."""
    for backend in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{backend}_SOCKET_IFNAME", "lo")
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"file://{launch.store}",
        rank=launch.rank,
        world_size=len(launch.devices),
        timeout=timedelta(seconds=START_SECONDS),
        device_id=device if on_gpu else None,
    )
