// What the kernels need of a device, for CUDA and HIP, without a vendor's headers.
//
// Kernels are launched with a one-dimensional grid of any size, of blocks of up to 1024 threads.
// Every parameter is an integer of 64 bits; addresses are global memory.
#pragma once

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef u64 u64x2 __attribute__((ext_vector_type(2)));
typedef float f32x4 __attribute__((ext_vector_type(4)));

#define DEVICE static inline __attribute__((device, always_inline))
#define KERNEL extern "C" __attribute__((global)) void
#define SHARED static __attribute__((device, shared))

#define MOST_THREADS 1024

// A pointer into global memory.
template <typename T> using Global = __attribute__((address_space(1))) T *;

#if defined(__NVPTX__)

DEVICE u32 thread() { return __nvvm_read_ptx_sreg_tid_x(); }
DEVICE u32 block_threads() { return __nvvm_read_ptx_sreg_ntid_x(); }
DEVICE u64 block() { return __nvvm_read_ptx_sreg_ctaid_x(); }
DEVICE u64 all_threads() { return (u64)__nvvm_read_ptx_sreg_nctaid_x() * block_threads(); }
DEVICE void barrier() { __syncthreads(); }
DEVICE void atomic_add(u64 at, u64 value) {
  __atomic_fetch_add((Global<u64>)at, value, __ATOMIC_RELAXED);
}
DEVICE void atomic_min(u64 at, u64 value) {
  __atomic_fetch_min((Global<u64>)at, value, __ATOMIC_RELAXED);
}

#elif defined(__AMDGCN__)

DEVICE u32 thread() { return __builtin_amdgcn_workitem_id_x(); }
DEVICE u32 block_threads() { return __builtin_amdgcn_workgroup_size_x(); }
DEVICE u64 block() { return __builtin_amdgcn_workgroup_id_x(); }
DEVICE u64 all_threads() { return __builtin_amdgcn_grid_size_x(); }
DEVICE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
DEVICE void atomic_add(u64 at, u64 value) {
  __hip_atomic_fetch_add((Global<u64>)at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
DEVICE void atomic_min(u64 at, u64 value) {
  __hip_atomic_fetch_min((Global<u64>)at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

#endif

// This thread among all of the grid.
DEVICE u64 index() { return block() * block_threads() + thread(); }

DEVICE u64 least(u64 a, u64 b) { return a < b ? a : b; }

// The finaliser of splitmix64, as `mix` in kernels/src/checksum.rs.
DEVICE u64 mix(u64 value) {
  u64 z = value + 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// A range of elements, cut so that its middle can be moved 16 bytes at a time.
struct Cut {
  u64 head; // elements before the first multiple of 16 bytes
  u64 wide; // groups of 16 bytes
  u64 tail; // elements after the last group
};

DEVICE Cut cut(u64 address, u64 count, u64 element_bytes) {
  u64 head = least(((0 - address) & 15) / element_bytes, count);
  u64 group = 16 / element_bytes;
  return {head, (count - head) / group, (count - head) % group};
}
