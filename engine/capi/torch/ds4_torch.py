"""PyTorch on ds4's allocator.

Call install() before PyTorch uses a GPU:

    import ds4_torch
    ds4_torch.install("target/release/libds4.so")
"""

import ctypes
import os
import warnings

_library = None
_allocator = None


class PoolStats(ctypes.Structure):
    """ds4_gpu_mgpu_pool_stats_t of ds4.h."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "budget_bytes",
            "used_bytes",
            "peak_used_bytes",
            "requested_bytes",
            "peak_requested_bytes",
            "reserved_bytes",
            "peak_reserved_bytes",
            "largest_free_bytes",
            "live_blocks",
            "allocs",
            "frees",
            "refusals",
        )
    ] + [("spare", ctypes.c_uint64 * 4)]


def _load(path):
    library = ctypes.CDLL(path)
    library.ds4_torch_stats.argtypes = [ctypes.c_int, ctypes.POINTER(PoolStats)]
    library.ds4_torch_stats.restype = ctypes.c_int
    library.ds4_gpu_mgpu_last_error.argtypes = []
    library.ds4_gpu_mgpu_last_error.restype = ctypes.c_char_p
    return library


def install(path):
    """Makes ds4 PyTorch's allocator for the rest of the process."""
    global _library, _allocator
    import torch

    path = os.path.abspath(path)
    _library = _load(path)
    _allocator = torch.cuda.memory.CUDAPluggableAllocator(
        path, "ds4_torch_alloc", "ds4_torch_free"
    )

    def address(name):
        return ctypes.cast(getattr(_library, name), ctypes.c_void_p).value

    # Without the first, Tensor.record_stream does nothing under a plugged-in allocator.
    for setter, name in (
        ("set_record_stream_fn", "ds4_torch_record_stream"),
        ("set_reset_fn", "ds4_torch_empty_cache"),
    ):
        if hasattr(_allocator.allocator(), setter):
            getattr(_allocator.allocator(), setter)(address(name))
        else:
            warnings.warn(f"this PyTorch has no {setter}: {name} is never called", stacklevel=2)
    torch.cuda.memory.change_current_allocator(_allocator)


def stats(device=0):
    """The figures of a device's pool, by PyTorch's number of the device, as a dictionary."""
    figures = PoolStats()
    if _library.ds4_torch_stats(device, ctypes.byref(figures)) != 0:
        raise RuntimeError(_library.ds4_gpu_mgpu_last_error().decode())
    return {name: getattr(figures, name) for name, _ in PoolStats._fields_ if name != "spare"}
