// Patterns that memory is written with and checked against; the reference is kernels/src/pattern.rs.
#include "device.h"

// The kinds as `Pattern::code` numbers them; the word means what it means there.
struct OwnAddress {
  u64 word;
  __attribute__((device)) u64 at(u64 position) const { return position; }
};
struct MovingInversion {
  u64 word;
  __attribute__((device)) u64 at(u64 position) const { return position & 1 ? ~word : word; }
};
struct Random {
  u64 word;
  __attribute__((device)) u64 at(u64 position) const { return mix(word ^ mix(position)); }
};

template <typename Pattern> DEVICE void write(u64 to, u64 words, u64 first, Pattern pattern) {
  Cut part = cut(to, words, 8);
  u64 middle = to + 8 * part.head, threads = all_threads();
  for (u64 i = index(); i < part.head; i += threads)
    ((Global<u64>)to)[i] = pattern.at(first + i);
  first += part.head;
  for (u64 i = index(); i < part.wide; i += threads) {
    u64 position = first + 2 * i;
    ((Global<u64x2>)middle)[i] = (u64x2){pattern.at(position), pattern.at(position + 1)};
  }
  for (u64 i = index(); i < part.tail; i += threads)
    ((Global<u64>)middle)[2 * part.wide + i] = pattern.at(first + 2 * part.wide + i);
}

// What a thread found wrong.
struct Wrong {
  u64 position = ~0ull;
  u64 count = 0;
  __attribute__((device)) void see(u64 found, u64 expected, u64 at) {
    if (found != expected) {
      position = least(position, at);
      count += 1;
    }
  }
};

template <typename Pattern>
DEVICE void check(u64 from, u64 words, u64 first, Pattern pattern, u64 result) {
  Cut part = cut(from, words, 8);
  u64 middle = from + 8 * part.head, threads = all_threads();
  Wrong wrong;
  for (u64 i = index(); i < part.head; i += threads)
    wrong.see(((Global<u64>)from)[i], pattern.at(first + i), first + i);
  first += part.head;
  for (u64 i = index(); i < part.wide; i += threads) {
    u64x2 found = ((Global<u64x2>)middle)[i];
    u64 position = first + 2 * i;
    wrong.see(found.x, pattern.at(position), position);
    wrong.see(found.y, pattern.at(position + 1), position + 1);
  }
  for (u64 i = 2 * part.wide + index(); i < 2 * part.wide + part.tail; i += threads)
    wrong.see(((Global<u64>)middle)[i], pattern.at(first + i), first + i);
  if (wrong.count > 0) {
    atomic_min(result, wrong.position);
    atomic_add(result + 8, wrong.count);
  }
}

KERNEL ds4_write_pattern(u64 to, u64 words, u64 first, u64 kind, u64 word) {
  if (kind == 0)
    write(to, words, first, OwnAddress{word});
  else if (kind == 1)
    write(to, words, first, MovingInversion{word});
  else
    write(to, words, first, Random{word});
}

KERNEL ds4_check_pattern(u64 from, u64 words, u64 first, u64 kind, u64 word, u64 result) {
  if (kind == 0)
    check(from, words, first, OwnAddress{word}, result);
  else if (kind == 1)
    check(from, words, first, MovingInversion{word}, result);
  else
    check(from, words, first, Random{word}, result);
}
