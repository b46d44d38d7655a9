"""NVIDIA's own Python bindings on whatever driver is loaded: devices, memory until refused, a copy
there and back, and mapped pages. Prints a line for each and ends with an error if one is wrong."""

from cuda.bindings import driver


def call(function, *arguments):
    """What a function returns beside its code, which must be success."""
    code, *values = function(*arguments)
    if code != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"{function.__name__} gave {code!r}")
    return values[0] if len(values) == 1 else values


def list_devices():
    for number in range(call(driver.cuDeviceGetCount)):
        device = call(driver.cuDeviceGet, number)
        name = call(driver.cuDeviceGetName, 64, device).rstrip(b"\0 ").decode()
        print(f"device {number}: {name}, {call(driver.cuDeviceTotalMem, device) >> 20} MiB")


def allocate_until_refused(chunk):
    blocks = []
    while True:
        code, address = driver.cuMemAlloc(chunk)
        if code != driver.CUresult.CUDA_SUCCESS:
            break
        blocks.append(address)
    assert code == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY, code
    print(f"refused after {len(blocks)} blocks of {chunk >> 20} MiB")
    for address in blocks:
        call(driver.cuMemFree, address)


def copy_there_and_back(address, size):
    sent = bytes(range(256)) * (size // 256)
    received = bytearray(size)
    call(driver.cuMemcpyHtoD, address, sent, size)
    call(driver.cuMemcpyDtoH, received, address, size)
    assert received == sent


def map_pages():
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = 0
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location = location
    minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    size = 4 * call(driver.cuMemGetAllocationGranularity, properties, minimum)
    access = driver.CUmemAccessDesc()
    access.location = location
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE

    base = call(driver.cuMemAddressReserve, size, 0, 0, 0)
    memory = call(driver.cuMemCreate, size, properties, 0)
    call(driver.cuMemMap, base, size, 0, memory, 0)
    call(driver.cuMemSetAccess, base, size, [access], 1)
    copy_there_and_back(base, size)
    call(driver.cuMemUnmap, base, size)
    call(driver.cuMemRelease, memory)
    call(driver.cuMemAddressFree, base, size)
    print(f"mapped {size >> 20} MiB, copied and unmapped")


call(driver.cuInit, 0)
list_devices()
call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, 0))
allocate_until_refused(256 << 20)
block = call(driver.cuMemAlloc, 1 << 20)
copy_there_and_back(block, 1 << 20)
call(driver.cuMemFree, block)
print("copied 1 MiB there and back")
map_pages()
call(driver.cuDevicePrimaryCtxRelease, 0)
