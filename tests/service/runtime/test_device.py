"""Device and memory settings, and their errors."""

from __future__ import annotations

import pytest
import torch

from turbofno.service.runtime import device as device_module
from turbofno.service.runtime.device import prepare_device, resolve_device
from turbofno.service.settings import Settings


def pretend(monkeypatch: pytest.MonkeyPatch, devices: int, current: int = 0) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)


@pytest.mark.parametrize(
    ("name", "devices", "found"),
    [
        ("auto", 0, "cpu"), ("cpu", 2, "cpu"), ("auto", 2, "cuda:1"), ("cuda", 2, "cuda:1"),
        ("cuda:0", 2, "cuda:0"),
    ],
)  # fmt: skip
def test_cuda_device_has_its_index(
    monkeypatch: pytest.MonkeyPatch, name: str, devices: int, found: str
) -> None:
    pretend(monkeypatch, devices, current=1)
    assert str(resolve_device(name)) == found


@pytest.mark.parametrize(
    ("name", "devices", "message"),
    [("cuda", 0, "no CUDA device"), ("cuda:2", 2, "CUDA devices 0 to 1 only")],
)
def test_missing_device_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, devices: int, message: str
) -> None:
    pretend(monkeypatch, devices)
    with pytest.raises(ValueError, match=f"TURBOFNO_DEVICE={name}, but torch sees {message}"):
        resolve_device(name)


@pytest.mark.parametrize("error", [RuntimeError, AssertionError])
def test_the_reason_why_there_is_no_device_is_torchs(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def refuse() -> None:
        raise error("The NVIDIA driver on your system is too old")

    pretend(monkeypatch, 0)
    monkeypatch.setattr(torch.cuda, "init", refuse)
    with pytest.raises(ValueError, match=r"no CUDA device here: The NVIDIA driver .* too old$"):
        resolve_device("cuda")
    with pytest.raises(ValueError, match=r"on the CPU \(TURBOFNO_DEVICE=auto\): The NVIDIA .* old"):
        prepare_device(Settings(device="auto", require_native=True))
    with pytest.raises(ValueError, match=r"on the CPU \(TURBOFNO_DEVICE=cpu\)$"):
        prepare_device(Settings(device="cpu", require_native=True))


def test_require_native_refuses_a_cpu_and_missing_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"TURBOFNO_REQUIRE_NATIVE.*on the CPU"):
        prepare_device(Settings(device="cpu", require_native=True))
    pretend(monkeypatch, 1)
    monkeypatch.setattr(device_module, "gpu_refusal", lambda device: f"not built for {device}")
    with pytest.raises(ValueError, match=r"TURBOFNO_REQUIRE_NATIVE.*not built for cuda:0"):
        prepare_device(Settings(device="cuda:0", require_native=True))


def test_memory_is_bounded_on_the_device_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 2)
    monkeypatch.setattr(device_module, "gpu_refusal", lambda _: None)
    calls: list[tuple[float, torch.device]] = []
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda *given: calls.append(given)
    )
    prepare_device(Settings(device="cuda:1", device_memory_fraction=0.25, require_native=True))
    assert calls == [(0.25, torch.device("cuda", 1))]
