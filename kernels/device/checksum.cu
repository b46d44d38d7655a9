// A checksum that threads compute in any order; the reference is kernels/src/checksum.rs.
#include "device.h"

// The sum over the block's threads, for its first thread.
DEVICE u64 block_sum(u64 sum) {
  SHARED u64 sums[MOST_THREADS];
  u32 me = thread();
  sums[me] = sum;
  barrier();
  // The upper part is added to the lower one until one sum is left.
  for (u32 left = block_threads(); left > 1; left = (left + 1) / 2) {
    if (me < left / 2)
      sums[me] += sums[me + (left + 1) / 2];
    barrier();
  }
  return sums[0];
}

DEVICE u64 sum_of_word(u64 word, u64 start) {
  u64 sum = 0;
#pragma unroll
  for (u32 byte = 0; byte < 8; byte += 1)
    sum += mix(start + 257 * byte + (word >> 8 * byte & 0xFF));
  return sum;
}

KERNEL ds4_checksum(u64 from, u64 bytes, u64 first, u64 result) {
  Cut part = cut(from, bytes, 1);
  u64 middle = from + part.head, end = middle + 16 * part.wide;
  u64 threads = all_threads(), sum = 0;
  for (u64 i = index(); i < part.head; i += threads)
    sum += mix(257 * (first + i) + ((Global<u8>)from)[i]);
  first += part.head;
  for (u64 i = index(); i < part.wide; i += threads) {
    u64x2 words = ((Global<u64x2>)middle)[i];
    u64 start = 257 * (first + 16 * i);
    sum += sum_of_word(words.x, start) + sum_of_word(words.y, start + 257 * 8);
  }
  first += 16 * part.wide;
  for (u64 i = index(); i < part.tail; i += threads)
    sum += mix(257 * (first + i) + ((Global<u8>)end)[i]);
  sum = block_sum(sum);
  if (thread() == 0)
    atomic_add(result, sum);
}
