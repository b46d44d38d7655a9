"""The cost of an allocation and its free on a GPU: ds4's C interface beside PyTorch's caching
allocator, the CUDA runtime's stream-ordered pool, and RMM where it is installed.

All run the same operations in one C++ program, so that no Python is timed: pairs of one size, and
the random workload of RMM's benchmark (1 B to 4 MiB, at most 16,000 MiB live). A pair is an
allocation and a free. One JSON object is printed.

    python engine/capi/torch/allocators.py --library target/release/libds4.so
"""

import argparse
import json
import os

SOURCE = r"""
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime.h>
#include <torch/extension.h>
#include <chrono>
#include <cstdint>
#include <dlfcn.h>
#include <functional>
#include <stdexcept>
#include <vector>

struct Op { bool allocate; uint32_t slot; size_t bytes; };

static uint64_t state;
static uint64_t next() {
    state += 0x9e3779b97f4a7c15ull;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
static uint64_t below(uint64_t end) { return (uint64_t)(((unsigned __int128)next() * end) >> 64); }

static std::vector<Op> random_ops(size_t allocations) {
    state = 1;
    std::vector<Op> ops;
    std::vector<std::pair<uint32_t, size_t>> live;
    std::vector<uint32_t> spare;
    uint64_t live_bytes = 0, cap = 16000ull << 20;
    uint32_t slots = 0;
    auto release = [&](size_t at) {
        auto [slot, bytes] = live[at];
        live[at] = live.back();
        live.pop_back();
        live_bytes -= bytes;
        spare.push_back(slot);
        ops.push_back({false, slot, bytes});
    };
    for (size_t made = 0; made < allocations;) {
        size_t bytes = 1 + below(4ull << 20);
        bool fits = live_bytes + bytes <= cap;
        if (live.empty() || (fits && below(100) < 73)) {
            uint32_t slot;
            if (spare.empty()) slot = slots++;
            else { slot = spare.back(); spare.pop_back(); }
            live.push_back({slot, bytes});
            live_bytes += bytes;
            ops.push_back({true, slot, bytes});
            made++;
        } else {
            release(below(live.size()));
        }
    }
    while (!live.empty()) release(live.size() - 1);
    return ops;
}

static std::vector<Op> one_size(size_t bytes, size_t pairs) {
    std::vector<Op> ops;
    for (size_t i = 0; i < pairs; i++) {
        ops.push_back({true, 0, bytes});
        ops.push_back({false, 0, bytes});
    }
    return ops;
}

template <class A, class F>
static double pair_ns(const std::vector<Op>& ops, A allocate, F release) {
    std::vector<void*> slots(200000, nullptr);
    double best = 1e30;
    for (int round = 0; round < 5; round++) {
        auto start = std::chrono::steady_clock::now();
        for (const Op& op : ops) {
            if (op.allocate) {
                slots[op.slot] = allocate(op.bytes);
                if (!slots[op.slot]) throw std::runtime_error("refused");
            } else {
                release(slots[op.slot], op.bytes);
            }
        }
        auto end = std::chrono::steady_clock::now();
        cudaDeviceSynchronize();
        double ns = std::chrono::duration<double, std::nano>(end - start).count();
        if (round > 0 && ns < best) best = ns;
    }
    return best / (ops.size() / 2.0);
}

struct Hint { uint32_t mask; };

std::vector<double> measure(const std::string& library, const std::string& what) {
    std::vector<std::vector<Op>> work = {one_size(1 << 20, 50000), random_ops(100000)};
    std::vector<double> out;
    if (what == "ds4") {
        void* handle = dlopen(library.c_str(), RTLD_NOW);
        if (!handle) throw std::runtime_error(dlerror());
        auto init = (int (*)(int, const void*))dlsym(handle, "ds4_gpu_mgpu_init");
        auto detect = (int (*)())dlsym(handle, "ds4_gpu_detect");
        auto allocate = (void* (*)(size_t, const Hint*))dlsym(handle, "ds4_gpu_mgpu_alloc");
        auto free = (int (*)(void*))dlsym(handle, "ds4_gpu_mgpu_free");
        auto release = [&](void* p, size_t) { free(p); };
        auto error = (const char* (*)())dlsym(handle, "ds4_gpu_mgpu_last_error");
        if (detect() < 1 || init(1, nullptr) != 0) throw std::runtime_error(error());
        for (uint32_t mask : {1u, 0u}) {
            Hint hint{mask};
            for (auto& ops : work)
                out.push_back(pair_ns(ops, [&](size_t b) { return allocate(b, &hint); }, release));
        }
    } else if (what == "torch") {
        using namespace c10::cuda::CUDACachingAllocator;
        for (auto& ops : work)
            out.push_back(pair_ns(ops, [](size_t b) { return raw_alloc(b); }, [](void* p, size_t) { raw_delete(p); }));
    } else if (what == "cudaMallocAsync") {
        for (auto& ops : work)
            out.push_back(pair_ns(ops,
                [](size_t b) { void* p = nullptr; cudaMallocAsync(&p, b, 0); return p; },
                [](void* p, size_t) { cudaFreeAsync(p, 0); }));
    } else if (what == "rmm") {
        // The resource that Python has set.
        void* handle = dlopen(library.c_str(), RTLD_NOW);
        if (!handle) throw std::runtime_error(dlerror());
        auto allocate = (void* (*)(ssize_t, int, void*))dlsym(handle, "allocate");
        auto release = (void (*)(void*, ssize_t, int, void*))dlsym(handle, "deallocate");
        for (auto& ops : work)
            out.push_back(pair_ns(ops,
                [&](size_t b) { return allocate((ssize_t)b, 0, nullptr); },
                [&](void* p, size_t b) { release(p, (ssize_t)b, 0, nullptr); }));
    } else {
        std::vector<Op> few = one_size(1 << 20, 200);
        out.push_back(pair_ns(few,
            [](size_t b) { void* p = nullptr; cudaMalloc(&p, b); return p; },
            [](void* p, size_t) { cudaFree(p); }));
    }
    return out;
}
"""


def rmm_rows(module):
    """RMM's arena and pool over cudaMalloc, through its plug-in for PyTorch; none without RMM."""
    try:
        import rmm
        from rmm.librmm import _logger
    except ImportError:
        return {}
    plug_in = os.path.join(os.path.dirname(_logger.__file__), "_torch_allocator.so")
    direct = rmm.mr.CudaMemoryResource()
    resources = {
        "RMM arena": lambda: rmm.mr.ArenaMemoryResource(direct, 20 << 30),
        "RMM pool": lambda: rmm.mr.PoolMemoryResource(direct, initial_pool_size=20 << 30),
    }
    rows = {}
    for name, resource in resources.items():
        rmm.mr.set_current_device_resource(resource())
        rows[name] = module.measure(plug_in, "rmm")
        rmm.mr.set_current_device_resource(direct)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--library", dest="plug_in", required=True, help="path of libds4.so")
    args = parser.parse_args()
    os.environ.setdefault("DS4_BACKEND", "cuda")
    import torch
    from torch.utils.cpp_extension import load_inline

    module = load_inline("ds4_allocators", SOURCE, functions=["measure"], with_cuda=True,
                         extra_cflags=["-O2", "-std=c++17"], extra_ldflags=["-ldl"])
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    library = os.path.abspath(args.plug_in)
    ds4 = module.measure(library, "ds4")
    caching = module.measure(library, "torch")
    pool = module.measure(library, "cudaMallocAsync")
    direct = module.measure(library, "cudaMalloc")
    rows = {
        "ds4 C interface, one bit": ds4[:2],
        "ds4 C interface, zero mask": ds4[2:],
        "PyTorch caching allocator": caching,
        "cudaMallocAsync": pool,
    }
    rmm = rmm_rows(module)
    rows.update(rmm)
    print(json.dumps({
        "device": torch.cuda.get_device_name(0),
        "unit": "ns per pair, least of 4 rounds",
        "rows": [{"subject": name, "1 MiB": round(one, 1), "random": round(random, 1)}
                 for name, (one, random) in rows.items()]
        + [{"subject": "cudaMalloc", "1 MiB": round(direct[0], 1)}],
        "rmm": "measured" if rmm else "not installed",
    }, indent=1))


if __name__ == "__main__":
    main()
