// Setting every byte to one value; the reference is kernels/src/fill.rs.
#include "device.h"

KERNEL ds4_fill(u64 to, u64 bytes, u64 value) {
  Cut part = cut(to, bytes, 1);
  u64 middle = to + part.head, end = middle + 16 * part.wide;
  u64 word = (value & 0xFF) * 0x0101010101010101;
  u64 threads = all_threads();
  for (u64 i = index(); i < part.head; i += threads)
    ((Global<u8>)to)[i] = (u8)value;
  for (u64 i = index(); i < part.wide; i += threads)
    ((Global<u64x2>)middle)[i] = (u64x2){word, word};
  for (u64 i = index(); i < part.tail; i += threads)
    ((Global<u8>)end)[i] = (u8)value;
}
