/* The C interface of ds4: device memory on the GPUs you allow.
 *
 * Written by 'cargo ci header --save' from engine/capi/src; change it there. */

#ifndef DS4_H
#define DS4_H

#include <stddef.h>
#include <stdint.h>

/**
 * It worked.
 */
#define DS4_OK 0

/**
 * ds4_gpu_mgpu_init was not called, or ds4_gpu_mgpu_shutdown was.
 */
#define DS4_NOT_INITIALIZED 1

/**
 * ds4_gpu_mgpu_init was called before; shut down first.
 */
#define DS4_ALREADY_INITIALIZED 2

/**
 * An argument makes no sense; the sentence says which and what to write instead.
 */
#define DS4_INVALID_ARGUMENT 3

/**
 * No such driver, or no such device.
 */
#define DS4_NO_DEVICE 4

/**
 * Every candidate refused; the sentence gives each one's reason. Free memory or relax the hint.
 */
#define DS4_REFUSED 5

/**
 * The block was freed before.
 */
#define DS4_DOUBLE_FREE 6

/**
 * The pointer is not memory of this allocator.
 */
#define DS4_FOREIGN_POINTER 7

/**
 * The pointer lies inside a block, not at its start.
 */
#define DS4_INTERIOR_POINTER 8

/**
 * The driver failed; the sentence has its words.
 */
#define DS4_DRIVER_ERROR 9

/**
 * A bug of ds4.
 */
#define DS4_INTERNAL_ERROR 10

/**
 * ds4_gpu_mgpu_copy: source and destination are on one device.
 */
#define DS4_COPY_SAME_DEVICE 1

/**
 * ds4_gpu_mgpu_copy: straight from device to device.
 */
#define DS4_COPY_PEER 2

/**
 * ds4_gpu_mgpu_copy: through host memory, because the devices do not reach each other.
 */
#define DS4_COPY_HOST_BOUNCE 3

/**
 * The most devices: a mask has this many bits.
 */
#define DS4_MAX_GPUS 32

/**
 * How the allocator is set up. Set everything to zero first, then struct_size to
 * sizeof(ds4_gpu_mgpu_config_t): what is zero has its default.
 */
typedef struct ds4_gpu_mgpu_config_t {
    /**
     * sizeof(ds4_gpu_mgpu_config_t), so that programs work with later versions of this library.
     */
    size_t struct_size;
    /**
     * "cuda", "hip" or "sim"; NULL for what DS4_BACKEND says. Without either, cuda is tried and
     * then hip. Simulated devices are never chosen unless asked for.
     */
    const char *backend;
    /**
     * The simulated machine: a shipped name such as "8x24g-mixed" or the path of a TOML file;
     * NULL for what DS4_TOPOLOGY says, and without that for "8x24g-mixed".
     */
    const char *topology;
    /**
     * Devices that are never used, not even opened for allocation: bit i stands for device i.
     */
    uint32_t exclude_mask;
    /**
     * Not 0: a hint of which no device exists is refused. 0: it takes the least loaded device.
     */
    uint32_t strict_hints;
    /**
     * For each device the most that its live blocks may take; 0 for all that is free at the
     * start.
     */
    uint64_t budget_bytes[DS4_MAX_GPUS];
    /**
     * For each device what is left alone for others.
     */
    uint64_t reserve_bytes[DS4_MAX_GPUS];
} ds4_gpu_mgpu_config_t;

/**
 * On which devices a block may live.
 */
typedef struct ds4_gpu_placement_t {
    /**
     * Bit i stands for device i. No bit at all means every device.
     */
    uint32_t mask;
} ds4_gpu_placement_t;

/**
 * The figures of one device's pool.
 */
typedef struct ds4_gpu_mgpu_pool_stats_t {
    /**
     * The most that live blocks may take.
     */
    uint64_t budget_bytes;
    /**
     * Live blocks, rounded up to 256 bytes each.
     */
    uint64_t used_bytes;
    /**
     * The most that used_bytes ever was.
     */
    uint64_t peak_used_bytes;
    /**
     * What the owners of live blocks asked for.
     */
    uint64_t requested_bytes;
    /**
     * The most that requested_bytes ever was.
     */
    uint64_t peak_requested_bytes;
    /**
     * Taken from the driver.
     */
    uint64_t reserved_bytes;
    /**
     * The most that reserved_bytes ever was.
     */
    uint64_t peak_reserved_bytes;
    /**
     * The largest request that would be granted without freeing anything.
     */
    uint64_t largest_free_bytes;
    /**
     * Live blocks.
     */
    uint64_t live_blocks;
    /**
     * Requests granted so far.
     */
    uint64_t allocs;
    /**
     * Blocks given back so far.
     */
    uint64_t frees;
    /**
     * Requests that this device could not take so far, whether or not another one could.
     */
    uint64_t refusals;
    /**
     * 0; room for figures of later versions.
     */
    uint64_t spare[4];
} ds4_gpu_mgpu_pool_stats_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of this library, for example "0.1.0".
 */
const char *ds4_version(void);

/**
 * How many GPUs there are: those of the backend that the variable DS4_BACKEND names (cuda, hip or
 * sim), else of CUDA, else of HIP. 0 if there is none, or no driver; ds4_gpu_mgpu_last_error says
 * which. Nothing is initialized.
 */
int ds4_gpu_detect(void);

/**
 * Opens the first num_gpus devices, with a pool of memory each. config may be NULL.
 *
 * Returns DS4_OK or why not. A second call is refused until ds4_gpu_mgpu_shutdown.
 *
 * Requires:
 * config is NULL or points to config->struct_size bytes, and its texts are NULL or end with a
 * zero byte.
 */
int ds4_gpu_mgpu_init(int num_gpus, const struct ds4_gpu_mgpu_config_t *config);

/**
 * Memory on the least loaded device of the hint that can hold it; hint NULL means any device.
 *
 * The result is an address of that device, a multiple of 256: never read or write through it on
 * the host. NULL if size is 0 or every candidate refuses; ds4_gpu_mgpu_last_error says why, and
 * nothing has changed. The memory is used first, and freed, on the default stream.
 *
 * Requires:
 * hint is NULL or points to a placement.
 */
void *ds4_gpu_mgpu_alloc(size_t size, const struct ds4_gpu_placement_t *hint);

/**
 * As ds4_gpu_mgpu_alloc, for memory that is used first, and freed, on a stream of the chosen
 * device: 0 or a number from ds4_gpu_mgpu_stream_create or ds4_gpu_mgpu_stream_adopt. Memory that
 * this stream freed is taken again at once, that of other streams after their work is done.
 *
 * Requires:
 * hint is NULL or points to a placement.
 */
void *ds4_gpu_mgpu_alloc_on(size_t size, const struct ds4_gpu_placement_t *hint, uint32_t stream);

/**
 * Gives a block back to the pool it came from, in the order of its stream: work that the stream
 * holds may still use it. NULL is ignored.
 *
 * Returns DS4_OK, or DS4_DOUBLE_FREE, DS4_FOREIGN_POINTER or DS4_INTERIOR_POINTER, and then
 * nothing has changed.
 */
int ds4_gpu_mgpu_free(void *ptr);

/**
 * Says that a block is used on a second stream of its device: after its free it waits for what
 * that stream holds then.
 */
int ds4_gpu_mgpu_record_use(void *ptr, uint32_t stream);

/**
 * Makes a stream on a device; its number is written to stream.
 *
 * Requires:
 * stream is NULL or points to a number that may be written.
 */
int ds4_gpu_mgpu_stream_create(int device, uint32_t *stream);

/**
 * Gives a number to a stream that the program made itself: raw is its cudaStream_t, CUstream or
 * hipStream_t, and NULL the default stream, number 0. The same stream gets the same number each
 * time. It must exist until ds4_gpu_mgpu_shutdown. A simulated device makes a stream of its own
 * for each raw.
 *
 * Requires:
 * raw is a stream of the device, and stream is NULL or points to a number that may be written.
 */
int ds4_gpu_mgpu_stream_adopt(int device, void *raw, uint32_t *stream);

/**
 * Waits for all work on a device.
 */
int ds4_gpu_mgpu_synchronize(int device);

/**
 * The device that holds the live block around an address, or -1.
 */
int ds4_gpu_mgpu_device_of(const void *ptr);

/**
 * Copies bytes between live blocks, also of different devices; both addresses may lie inside a
 * block. The copy takes its turn in the streams of both blocks.
 *
 * The path is written to path unless that is NULL: DS4_COPY_SAME_DEVICE, DS4_COPY_PEER or
 * DS4_COPY_HOST_BOUNCE. A bounced copy is complete on return.
 *
 * Requires:
 * path is NULL or points to a number that may be written.
 */
int ds4_gpu_mgpu_copy(void *dst, const void *src, size_t bytes, int *path);

/**
 * Copies from host memory into a live block, after all work on its device, and waits.
 *
 * Requires:
 * host points to so many bytes.
 */
int ds4_gpu_mgpu_write(void *dst, const void *host, size_t bytes);

/**
 * Copies from a live block to host memory, after all work on its device, and waits.
 *
 * Requires:
 * host points to so many bytes that may be written.
 */
int ds4_gpu_mgpu_read(void *host, const void *src, size_t bytes);

/**
 * Gives memory that no block touches back to the driver; the bytes are written to
 * returned_bytes unless that is NULL.
 *
 * Requires:
 * returned_bytes is NULL or points to a number that may be written.
 */
int ds4_gpu_mgpu_trim(uint64_t *returned_bytes);

/**
 * The figures of one device's pool.
 *
 * Requires:
 * stats is NULL or points to a structure that may be written.
 */
int ds4_gpu_mgpu_pool_stats(int device, struct ds4_gpu_mgpu_pool_stats_t *stats);

/**
 * Why this thread's last failed call failed: one sentence, "" before the first. The text is valid
 * until the thread's next failure; calls that succeed leave it alone.
 */
const char *ds4_gpu_mgpu_last_error(void);

/**
 * The number of this thread's last failure, for functions that return pointers; DS4_OK before the
 * first.
 */
int ds4_gpu_mgpu_last_status(void);

/**
 * Waits until no other call runs and gives all memory back to the driver, that of live blocks
 * too. Not for a process forked while calls ran: they never end there. After a failure the allocator is closed as well: initialize it anew.
 */
int ds4_gpu_mgpu_shutdown(void);

/**
 * Memory of a device for PyTorch, in the order of one of its streams; NULL for 0 bytes.
 *
 * PyTorch does not look whether it gets NULL. A refusal is therefore raised as a C++ exception
 * (std::runtime_error), which Python sees as a RuntimeError that begins with "CUDA out of memory".
 * Where the process has no C++ runtime, the sentence is written to standard error, once, and the
 * result is NULL.
 *
 * Requires:
 * stream is NULL or a stream of the device that exists as long as the process.
 */
void *ds4_torch_alloc(ptrdiff_t size, int device, void *stream);

/**
 * Gives a block of PyTorch's back, in the order of the stream for which it was taken.
 *
 * Requires:
 * No work but that of its stream and of streams given to ds4_torch_record_stream uses the block.
 */
void ds4_torch_free(void *ptr, ptrdiff_t size, int device, void *stream);

/**
 * For set_record_stream_fn: the block is used on a second stream too, and after its free waits
 * for what that stream holds then.
 *
 * Requires:
 * stream is a stream of the block's device that exists as long as the process.
 */
void ds4_torch_record_stream(void *ptr, void *stream);

/**
 * For set_reset_fn, which torch.cuda.empty_cache calls: gives memory that no block touches back
 * to the driver.
 */
void ds4_torch_empty_cache(void);

/**
 * The figures of a device's pool by PyTorch's number of the device.
 *
 * Requires:
 * stats is NULL or points to a structure that may be written.
 */
int ds4_torch_stats(int device, struct ds4_gpu_mgpu_pool_stats_t *stats);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DS4_H */
