"""The device that models run on: its selection, use of our kernels, and memory limit."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from turbofno.service.settings import env_name
from turbofno_ops import gpu_refusal, native_status

if TYPE_CHECKING:
    from turbofno.service.settings import Settings

logger = logging.getLogger(__name__)


def resolve_device(name: str) -> torch.device:
    """The torch device for the `device` setting, CUDA with its index. Raises ValueError if it does not exist."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    device = torch.device("cuda" if name == "auto" else name)
    count = torch.cuda.device_count()
    if not count:
        raise ValueError(
            f"{env_name('device')}={name}, but torch sees no CUDA device here: {_why_no_device()}"
        )
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= count:
        raise ValueError(
            f"{env_name('device')}={name}, but torch sees CUDA devices 0 to {count - 1} only"
        )
    return torch.device("cuda", index)


def prepare_device(settings: Settings) -> torch.device:
    """The device that the settings name, with this process's memory on it limited.

    Raises:
        ValueError: it does not exist, or `require_native` is set and our kernels cannot run on it.
    """
    device = resolve_device(settings.device)
    on_cuda = device.type == "cuda"
    if settings.require_native and (
        refused := gpu_refusal(device) if on_cuda else _why_on_cpu(settings.device)
    ):
        raise ValueError(
            f"{env_name('require_native')} is set, but the CUDA kernels do not run: {refused}"
        )
    if on_cuda:
        torch.cuda.set_per_process_memory_fraction(settings.device_memory_fraction, device)
    return device


def log_backend(device: torch.device) -> None:
    """Log the device and kernels; a warning if a GPU cannot use our kernels."""
    if device.type != "cuda":
        logger.info("models run on the CPU")
        return
    where = f"{device} ({torch.cuda.get_device_name(device)})"
    if refused := gpu_refusal(device):
        logger.warning("models run on %s without our CUDA kernels: %s", where, refused)
    else:
        logger.info(
            "models run on %s through the CUDA kernels of %s", where, native_status().detail
        )


def _why_on_cpu(name: str) -> str:
    """Why models run on a CPU with this `device` setting."""
    chosen = f"models run on the CPU ({env_name('device')}={name})"
    return chosen if name == "cpu" else f"{chosen}: {_why_no_device()}"


def _why_no_device() -> str:
    """Why torch sees no CUDA device: its text."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        # The second from a PyTorch that was built without CUDA.
        return str(error)
    return "it gives no reason"


def memory_limit(device: torch.device, fraction: float) -> int:
    """Most bytes of a CUDA device that this process may allocate."""
    return int(torch.cuda.get_device_properties(device).total_memory * fraction)
