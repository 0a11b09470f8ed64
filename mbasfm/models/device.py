"""Devices on which networks compute, and their precision."""

from contextlib import AbstractContextManager

import torch


def accelerator() -> torch.device:
    """CUDA's or Apple's device, else the CPU."""
    kind = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    return torch.device(kind)


def gpu_or_cpu() -> torch.device:
    """CUDA's device, else the CPU: for networks with operations that Apple's lacks."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def is_fast(device: torch.device) -> bool:
    """Whether a device is anything but the CPU."""
    return device.type != "cpu"


def half_if_fast(device: torch.device) -> AbstractContextManager[None]:
    """Context with half precision on an accelerator; on the CPU it would be slower."""
    return torch.autocast(device.type, torch.float16, enabled=is_fast(device))


def key_of(device: torch.device) -> str:
    """Precision as part of a model's key, because it changes the last digits."""
    return f"-{device.type}" if is_fast(device) else ""
