"""What XLA devices ask for that others do not; all of torch_xla that the package knows.

A tensor that `.to(device)` brings to such a device is part of a graph, and a thread that runs the graph
(`torch_xla.sync()`) while another thread does so spoils it: batches came out wrong. What torch_xla's own
loader calls in its threads makes no graph, and has read the memory when it returns.
"""

from __future__ import annotations

from typing import Any

import torch

from edcache.base import MissingDependencyError


def is_xla(device: torch.device | None) -> bool:
    """Whether it is a device of torch_xla, which must be installed then."""
    if device is None or device.type != "xla":
        return False
    try:
        import torch_xla  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            f'device="{device}" needs torch_xla; install it with: pip install edcache[xla]'
        ) from None
    return True


def upload(tensors: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Copy tensors to an XLA device, from any thread; the memory may be written again at once."""
    from torch_xla.core.xla_model import send_cpu_data_to_device

    sent: list[torch.Tensor] = send_cpu_data_to_device(tensors, device)
    return sent


def is_queue(frame: Any) -> bool:
    """Whether what is given to this frame waits in a queue of torch_xla's loader before it is uploaded."""
    return bool(frame.f_globals.get("__name__") == "torch_xla.distributed.parallel_loader")
