"""Memory: where batches live, on the host and on a GPU, and how much of it may be used.

`limits` says how much there is; `spaces` are the two kinds of memory with their array libraries;
`host_pool` and `device_pool` reuse buffers; `device_cache` holds on a device what an op learned.
`threads` maps a function over items on several threads.
"""

from tutorlib.memory.device_cache import DeviceCache
from tutorlib.memory.device_pool import DevicePool
from tutorlib.memory.host_pool import ALIGNMENT, BufferPool, aligned, aligned_empty
from tutorlib.memory.limits import (
    DEVICES,
    allocation_not_applied,
    gpu_not_used,
    has_gpu,
    host_memory_bytes,
    limit_tensorflow_memory,
    loader_gpu_bytes,
    missing_for_gpu,
    parse_allocation,
    resolve_device,
    thread_count,
    usable_cores,
)
from tutorlib.memory.spaces import (
    GpuSpace,
    HostSpace,
    MemorySpace,
    gpu_space,
    memory_space,
    working_in,
)
from tutorlib.memory.threads import map_on_threads

__all__ = [
    "ALIGNMENT",
    "DEVICES",
    "BufferPool",
    "DeviceCache",
    "DevicePool",
    "GpuSpace",
    "HostSpace",
    "MemorySpace",
    "aligned",
    "aligned_empty",
    "allocation_not_applied",
    "gpu_not_used",
    "gpu_space",
    "has_gpu",
    "host_memory_bytes",
    "limit_tensorflow_memory",
    "loader_gpu_bytes",
    "map_on_threads",
    "memory_space",
    "missing_for_gpu",
    "parse_allocation",
    "resolve_device",
    "thread_count",
    "usable_cores",
    "working_in",
]
