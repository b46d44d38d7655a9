"""Numba on whatever driver is loaded: devices, an array there and back, and memory until refused.
Prints a line for each and ends with an error if one is wrong."""

import numpy
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError


def allocate_until_refused(count):
    arrays = []
    try:
        while True:
            arrays.append(cuda.device_array(count, dtype=numpy.uint8))
    except CudaAPIError as refusal:
        assert refusal.code == 2, refusal
    print(f"refused after {len(arrays)} arrays of {count >> 20} MiB")


assert cuda.detect(), "numba supports none of the devices"
print(f"memory: {cuda.current_context().get_memory_info()}")
sent = numpy.arange(100_000, dtype=numpy.float32)
received = cuda.to_device(sent).copy_to_host()
assert (received == sent).all()
print(f"copied {sent.nbytes} bytes there and back")
allocate_until_refused(256 << 20)
