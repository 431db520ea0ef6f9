"""Whether two samples, batches or calls are the same, types and order of keys included."""

import struct

import numpy as np
import torch


def bits(tensor):
    """A tensor's bytes: those of nan and of -0.0 too."""
    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else tensor


def same(one, other):
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bits(one).equal(bits(other))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def outcome(make):
    """What a call returns, and the type and text of what it raises."""
    try:
        return make(), None
    except Exception as error:
        return None, (type(error), str(error))
