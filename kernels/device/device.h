// What the kernels need of a device, for CUDA and HIP, without a vendor's headers.
//
// Kernels are launched with a one-dimensional grid of any size, of blocks of up to 1024 threads.
// Every parameter is an integer of 64 bits; addresses are global memory.
#pragma once

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef u64 u64x2 __attribute__((ext_vector_type(2)));
typedef float f32x2 __attribute__((ext_vector_type(2)));
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

// Nanoseconds of a clock that goes on evenly.
DEVICE u64 clock_ns() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
// Loads and stores that other devices see, and whose order others keep.
DEVICE u64 load_relaxed(u64 at) {
  u64 value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
DEVICE u32 load_acquire(u64 at) {
  u32 value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
DEVICE void store_release(u64 at, u32 value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
// Two packets at a multiple of 16; each is loaded and stored as a whole.
DEVICE u64x2 load_packets(u64 at) {
  u64x2 packets;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(packets.x), "=l"(packets.y)
               : "l"(at)
               : "memory");
  return packets;
}
DEVICE void store_packets(u64 at, u64x2 packets) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(packets.x),
               "l"(packets.y)
               : "memory");
}
// Whether this call is the first to replace 0.
DEVICE bool atomic_first(u64 at, u64 value) {
  u64 none = 0;
  return __atomic_compare_exchange_n((Global<u64>)at, &none, value, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED);
}
// What the kernel before this one in the stream has done is there. Only then may the next one bring
// its blocks into place, so that no more than two kernels hold places.
DEVICE void previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
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
// The steady counter has 100 MHz on every processor that has it.
DEVICE u64 clock_ns() { return 10 * __builtin_readsteadycounter(); }
DEVICE u64 load_relaxed(u64 at) {
  return __hip_atomic_load((Global<u64>)at, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
DEVICE u32 load_acquire(u64 at) {
  return __hip_atomic_load((Global<u32>)at, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
}
DEVICE void store_release(u64 at, u32 value) {
  __hip_atomic_store((Global<u32>)at, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}
DEVICE u64x2 load_packets(u64 at) { return {load_relaxed(at), load_relaxed(at + 8)}; }
DEVICE void store_packets(u64 at, u64x2 packets) {
  __hip_atomic_store((Global<u64>)at, packets.x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  __hip_atomic_store((Global<u64>)(at + 8), packets.y, __ATOMIC_RELAXED,
                     __HIP_MEMORY_SCOPE_SYSTEM);
}
DEVICE bool atomic_first(u64 at, u64 value) {
  u64 none = 0;
  return __hip_atomic_compare_exchange_strong((Global<u64>)at, &none, value, __ATOMIC_RELAXED,
                                              __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
DEVICE void previous_kernel() {}

#endif

// This thread among all of the grid.
DEVICE u64 index() { return block() * block_threads() + thread(); }

DEVICE float as_float(u32 bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

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
