// Adding one vector to another; the reference is kernels/src/add.rs.
#include "device.h"

KERNEL ds4_add_f32(u64 sum, u64 other, u64 count) {
  Cut part = cut(sum, count, 4);
  // Differently aligned vectors are added one float at a time.
  if ((sum ^ other) & 15)
    part = {count, 0, 0};
  u64 middle = sum + 4 * part.head, middle_other = other + 4 * part.head;
  u64 threads = all_threads();
  for (u64 i = index(); i < part.head; i += threads)
    ((Global<float>)sum)[i] += ((Global<float>)other)[i];
  for (u64 i = index(); i < part.wide; i += threads)
    ((Global<f32x4>)middle)[i] += ((Global<f32x4>)middle_other)[i];
  for (u64 i = 4 * part.wide + index(); i < 4 * part.wide + part.tail; i += threads)
    ((Global<float>)middle)[i] += ((Global<float>)middle_other)[i];
}
