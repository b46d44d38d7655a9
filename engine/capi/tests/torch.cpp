// What PyTorch does with its allocator, without PyTorch: the same calls, from C++.

#include <ds4.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#define CHECK(what)                                                                 \
    do {                                                                            \
        if (!(what)) {                                                              \
            std::fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n",       \
                         __FILE__, __LINE__, #what, ds4_gpu_mgpu_last_error());     \
            std::exit(1);                                                           \
        }                                                                           \
    } while (0)

namespace {

constexpr std::ptrdiff_t MIB = 1 << 20;

void *side_stream() {
    static int stream;
    return &stream;
}

ds4_gpu_mgpu_pool_stats_t stats_of(int device) {
    ds4_gpu_mgpu_pool_stats_t stats;
    CHECK(ds4_torch_stats(device, &stats) == DS4_OK);
    return stats;
}

// The text of the exception that a request ends in, "" if it is granted.
std::string refusal(std::ptrdiff_t bytes, int device, void *stream = nullptr) {
    try {
        void *block = ds4_torch_alloc(bytes, device, stream);
        CHECK(block != nullptr);
        ds4_torch_free(block, bytes, device, stream);
        return "";
    } catch (const std::exception &error) {
        return error.what();
    }
}

bool begins_with(const std::string &text, const char *start) {
    return text.compare(0, std::strlen(start), start) == 0;
}

// Threads meet the first request together: one of them opens the devices.
void the_first_request_opens_the_devices() {
    std::vector<std::thread> threads;
    for (int number = 0; number < 8; number++)
        threads.emplace_back([] { CHECK(refusal(MIB, 0) == ""); });
    for (auto &thread : threads)
        thread.join();
    CHECK(stats_of(0).allocs == 8 && stats_of(0).frees == 8);
}

void memory_lies_on_the_device_that_was_asked_for() {
    for (int device = 0; device < 2; device++) {
        void *block = ds4_torch_alloc(3 * MIB, device, nullptr);
        CHECK(block != nullptr && ds4_gpu_mgpu_device_of(block) == device);
        ds4_torch_free(block, 3 * MIB, device, nullptr);
    }
    CHECK(ds4_torch_alloc(0, 0, nullptr) == nullptr);
    ds4_torch_free(nullptr, 0, 0, nullptr);
}

void a_refusal_is_an_exception_and_changes_nothing() {
    const ds4_gpu_mgpu_pool_stats_t before = stats_of(0);
    const std::string text = refusal(1024 * MIB, 0);
    CHECK(begins_with(text, "CUDA out of memory. ds4 refused 1 GiB on mask 0b1"));
    CHECK(stats_of(0).used_bytes == before.used_bytes);
    CHECK(refusal(MIB, 0) == "");
    CHECK(begins_with(refusal(-1, 0), "ds4: "));
    CHECK(begins_with(refusal(MIB, 7), "ds4: device 7 was not opened"));
}

void streams_are_taken_over_once() {
    void *block = ds4_torch_alloc(MIB, 0, side_stream());
    CHECK(block != nullptr);
    ds4_torch_record_stream(block, nullptr);
    ds4_torch_free(block, MIB, 0, side_stream());
    void *again = ds4_torch_alloc(MIB, 0, side_stream());
    CHECK(again != nullptr);
    ds4_torch_free(again, MIB, 0, side_stream());
    ds4_torch_empty_cache();
    CHECK(stats_of(0).live_blocks == 0);
}

// With DS4_TORCH_PLACEMENT=0:0,1 what device 0 cannot hold lies on device 1.
void a_full_device_borrows() {
    void *own = ds4_torch_alloc(40 * MIB, 0, side_stream());
    void *lent = ds4_torch_alloc(40 * MIB, 0, side_stream());
    CHECK(ds4_gpu_mgpu_device_of(own) == 0 && ds4_gpu_mgpu_device_of(lent) == 1);
    ds4_torch_record_stream(lent, side_stream());
    CHECK(begins_with(refusal(40 * MIB, 1), "CUDA out of memory."));
    const std::string both = refusal(40 * MIB, 0);
    CHECK(begins_with(both, "CUDA out of memory."));
    CHECK(both.find("gpu0 uses") != std::string::npos && both.find("gpu1 uses") != std::string::npos);
    ds4_torch_free(lent, 40 * MIB, 0, side_stream());
    ds4_torch_free(own, 40 * MIB, 0, side_stream());
    CHECK(stats_of(0).live_blocks == 0 && stats_of(1).live_blocks == 0);
}

}  // namespace

int main(int count, char **) {
    if (count > 1) {
        a_full_device_borrows();
    } else {
        the_first_request_opens_the_devices();
        memory_lies_on_the_device_that_was_asked_for();
        a_refusal_is_an_exception_and_changes_nothing();
        streams_are_taken_over_once();
    }
    std::puts("ok");
    return 0;
}
