"""Encoding of tensors, and the dtypes of torch."""

from __future__ import annotations

from typing import Any

import torch

from edcache.base import CorruptRecordError
from edcache.codec.dtypes import MAX_NDIM, TENSOR_DTYPES, Array, Dtype
from edcache.codec.leaves import Refusal

# An older torch lacks the newer names.
NAMES: dict[torch.dtype, str] = {getattr(torch, name): name for name in TENSOR_DTYPES if hasattr(torch, name)}
_DTYPES = {name: dtype for dtype, name in NAMES.items()}
_NUMPY_KNOWS = {dtype: name for dtype, name in NAMES.items() if TENSOR_DTYPES[name].bits is None}


def torch_dtype(name: Any) -> torch.dtype:
    """Return the dtype of a name in a schema; CorruptRecordError if this torch lacks it."""
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise CorruptRecordError(f"schema: this torch has no dtype {name!r}")
    return dtype


def memory_dtype(dtype: torch.dtype) -> Dtype:
    """Return the numpy dtype of a torch dtype's memory: int16 for bfloat16, which numpy does not know."""
    return TENSOR_DTYPES[NAMES[dtype]].array


def encode_tensor(value: torch.Tensor, values: list[Any]) -> Any:
    """Append the memory of a tensor, and return its node, as `leaves.ENCODERS` do. Raises Refusal."""
    name = _NUMPY_KNOWS.get(value.dtype)
    if name is not None and not value.requires_grad and not value.__dict__ and value.grad is None:
        try:
            # numpy() refuses devices, layouts and lazy conjugation, all at once.
            array = value.numpy()
            values.append(array if array.flags.c_contiguous else array.copy("C"))
            return "tensor", name, array.ndim or ()
        except (RuntimeError, TypeError, ValueError):
            pass
    name = NAMES.get(value.dtype)
    remedy = _tensor_remedy(value)
    if remedy:
        raise Refusal(remedy)
    if name is None:
        raise Refusal(f"a tensor of {value.dtype}; convert it to another dtype")
    if value.dim() > MAX_NDIM:
        raise Refusal(f"a tensor of {value.dim()} dimensions, more than {MAX_NDIM}; reshape it")
    try:
        values.append(_tensor_array(value, TENSOR_DTYPES[name].bits))
    except (RuntimeError, TypeError) as error:
        raise Refusal(f"this tensor; call .detach().clone() on it ({error})") from error
    return "tensor", name, value.dim() or ()


def _tensor_array(value: torch.Tensor, bits: str | None) -> Array:
    """Return the memory of a strided CPU tensor as a C-ordered array: a view if it is one already."""
    if bits is None:
        return value.resolve_conj().resolve_neg().contiguous().numpy()
    # Viewed first: torch does not copy all of its dtypes, but integers.
    return value.view(getattr(torch, bits)).contiguous().numpy()


def _tensor_remedy(value: torch.Tensor) -> str:
    if value.is_quantized:
        return "a quantized tensor; call .dequantize() on it"
    if value.is_nested:
        return "a nested tensor; store .unbind() of it, a tuple of tensors"
    if value.layout is not torch.strided:
        return f"a tensor of layout {value.layout}; call .to_dense() on it"
    if value.device.type != "cpu":
        return f"a tensor on device {value.device}; call .cpu() on it"
    if value.requires_grad or value.grad is not None:
        return "a tensor that requires grad, or has one; call .detach() on it"
    if value.__dict__:
        name = next(iter(value.__dict__))
        return f"a tensor with the attribute {name!r}; store that beside it, and call .detach() on the tensor"
    return ""
